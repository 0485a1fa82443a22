"""Ranges for the figures that experiments expect: what several seeds give, widened.

    python benchmarks/expected_ranges.py ilrg_table1 --seeds 0 1 2 3 4
    python benchmarks/expected_ranges.py ilrg_table1 --folders 'runs/seeds/ilrg_table1_*/run'

Prints the values of every figure under `expected` in the yaml, and a range: [lowest, highest], widened on
each side by half of their distance, but at least by a margin that covers rounding and the draw of few
examples: .02 of a share, 1 dB, a factor of 3 of anything else (errors differ by magnitudes). From fewer than
five seeds: by their whole distance, and at least .08, 4 dB, a factor of 9. Without names: the experiments of
at most .2 minutes.
"""

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedsim.commands.run import kind_of, play
from fedsim.config.catalog import entries
from fedsim.config.compose import composed
from fedsim.core.expectation import Expectation
from fedsim.lab.check import Outcome, judge
from fedsim.storage.runfolder import RunFolder

SHARES = {
    *("leacc", "lnacc", "irec", "ssim", "accuracy", "detection", "false_rejects", "gone", "area"),
    *("probability_cosine", "embedding_cosine", "false alarms", "certified"),
}
DECIBELS = {"psnr", "psnr_best6"}
ENOUGH = 5  # seeds
LEAST = {"share": 0.02, "decibels": 1.0, "magnitude": math.log10(3)}
LEAST_OF_FEW = {"share": 0.08, "decibels": 4.0, "magnitude": math.log10(9)}


def widened(figure: str, values: Sequence[float], seeds: int) -> tuple[float, float]:
    """Return a range that holds all values, with a margin."""
    kind = "share" if figure in SHARES else "decibels" if figure in DECIBELS else "magnitude"
    low, high = min(values), max(values)
    floor, part = (LEAST[kind], 0.5) if seeds >= ENOUGH else (LEAST_OF_FEW[kind], 1.0)
    if kind == "magnitude":
        if low <= 0:
            return (0.0, rounded(3 * high, up=True))
        margin = max(floor, part * math.log10(high / low))
        return rounded(low / 10**margin, up=False), rounded(high * 10**margin, up=True)
    margin = max(floor, part * (high - low))
    low, high = low - margin, high + margin
    if kind == "decibels":
        return float(math.floor(low)), float(math.ceil(high))
    return math.floor(100 * max(low, 0.0)) / 100, math.ceil(100 * min(high, 1.0)) / 100


def rounded(value: float, *, up: bool) -> float:
    """Return a number of two digits that is no nearer to zero (up), or no farther from it."""
    if value == 0:
        return 0.0
    scale = 10 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{(math.ceil if up else math.floor)(value / scale) * scale:.2g}")


def played(name: str, seed: int, folder: Path) -> RunFolder:
    overrides = [f"experiment={name}", f"seed={seed}"]
    key = "hydra.sweep.dir" if kind_of(overrides) == "sweep" else "hydra.run.dir"
    play([*overrides, f"{key}={folder}"])
    return RunFolder(folder)


def suggested(expectation: Expectation, folders: Sequence[RunFolder]) -> tuple[list[float], str]:
    judged = [judge(expectation, folder) for folder in folders]
    missing = [one for one in judged if one.outcome is Outcome.MISSING]
    if missing:
        return [], f"missing: {missing[0].reason}"
    values = [value for one in judged for value in one.got]
    low, high = widened(expectation.figure, values, len(folders))
    held = (
        "" if expectation.least <= min(values) and max(values) <= expectation.most else "  OUTSIDE the yaml's"
    )
    return values, f"[{low:g}, {high:g}]{held}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--folders", nargs="+", type=Path, help="of one experiment, instead of running it")
    given = parser.parse_args()
    quick = [entry.name for entry in entries("experiment") if entry.minutes and entry.minutes <= 0.2]
    for name in given.names or quick:
        with tempfile.TemporaryDirectory() as place:
            folders = [RunFolder(path) for path in given.folders or ()]
            folders = folders or [played(name, seed, Path(place, str(seed))) for seed in given.seeds]
            print(f"{name}, {len(folders)} seeds")
            for expectation in composed([f"experiment={name}"]).expected:
                values, words = suggested(expectation, folders)
                shown = ", ".join(f"{value:.4g}" for value in values)
                print(f"  {expectation}\n    {shown}\n    {words}")


if __name__ == "__main__":
    main()
