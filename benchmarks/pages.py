"""Pages of large runs: how long they take to write and to open in Chromium, and how large they are.

A made-up run of 10,000 observations (100 rounds of 100 clients): guesses, truths, scores by five metrics,
an audit's verdict on each, 300 faults; and a game of 10,000 moves. Bar: opens within 2 s, below 5 MB.

    python benchmarks/pages.py [OBSERVATIONS]
"""

import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from browser import CHROMIUM
from made_move import a_move, some_batches
from small_settings import SMALL

from fedsim.config.compose import as_text, compose
from fedsim.core.types import Reconstruction, RoundResult, Truth, Verdict
from fedsim.report.write import write_report
from fedsim.storage.games import MOVES, MoveRow, keep_move
from fedsim.storage.runfolder import TABLES, RunFolder
from fedsim.storage.scores import ScoreRow
from fedsim.storage.tables import write_rows

CLIENTS, METRICS = 100, ("leacc", "lnacc", "irec", "psnr", "ssim")
MEMORY = Path("/dev/shm")
LOADED = """<script>addEventListener("load", () => requestAnimationFrame(() =>
  document.title = "loaded " + performance.now()));</script></body>"""


def large_run(path: Path, number: int) -> RunFolder:
    """Leave what a run of so many observations leaves."""
    folder, generator = RunFolder(path), torch.Generator().manual_seed(0)
    folder.begin("run", as_text(compose([*SMALL, f"federation.clients={CLIENTS}"])))
    places = [(1 + place // CLIENTS, place % CLIENTS) for place in range(number)]
    rows, verdicts = list[ScoreRow](), list[Verdict]()
    for round, client in places:
        labels = torch.randint(4, (6,), generator=generator)
        images, guess = (torch.rand(6, 1, 8, 8, generator=generator) for _ in range(2))
        folder.keep_truth(Truth(round=round, client=client, images=images, labels=labels))
        counts = labels.bincount(minlength=4)
        folder.keep_guess(round, client, Reconstruction(images=guess, class_counts=counts))
        own = {"round": round, "client": client, "attack": "ilrg"}
        rows += [ScoreRow(**own, metric=name, value=0.01 * client, baseline=0.5) for name in METRICS]
        verdicts.append(
            Verdict(
                round=round, client=client, accepted=client % 9 > 0, distance=1e-9 * (1 + client), limit=1e-6
            )
        )
    rows += [ScoreRow(**own, metric="fault", value=None, error="x" * 400) for _ in range(300)]
    history = [
        RoundResult(round=round, accuracy=0.5, loss=1.0, seconds=1.0)
        for round in range(1 + number // CLIENTS)
    ]
    folder.write_scores(rows)
    folder.keep_malicious(["free_rider" if client % 9 == 0 else "" for client in range(CLIENTS)])
    for name, kind, table in (("verdicts.csv", Verdict, verdicts), ("history.csv", RoundResult, history)):
        assert TABLES[name] is kind
        write_rows(folder.storage, name, kind, table)
    folder.write_summary({"name": "large", "status": "complete", "metrics": {}, "observations": number})
    return folder


def large_game(path: Path, number: int) -> RunFolder:
    """Leave what a game of so many moves leaves."""
    folder = RunFolder(path)
    folder.begin("game", as_text(compose([*SMALL])))
    forgeries = ("greedy", "nearest", "box", "kong")
    moves = [
        replace(a_move(forgeries[place % 4], place), game="", step=place % 500, reason="too far off")
        for place in range(number)
    ]
    for move in moves[:4]:
        keep_move(folder.storage, move, some_batches())
    write_rows(folder.storage, MOVES, MoveRow, moves)
    folder.write_summary({"name": "large", "status": "complete", "metrics": {}})
    return folder


def opened(page: Path) -> float:
    """Return after how many seconds Chromium has loaded and drawn a page."""
    timed = page.with_name("timed.html")
    timed.write_text(page.read_text(encoding="utf-8").replace("</body>", LOADED), encoding="utf-8")
    flags = [flag for flag in CHROMIUM if not flag.startswith("--virtual-time")]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        program = [*flags, f"--user-data-dir={profile}", "--timeout=10000", "--window-size=1400,900"]
        program += ["--dump-dom", f"file://{timed}"]
        printed = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r"<title>loaded ([\d.]+)</title>", printed)
    return float("nan") if found is None else float(found[1]) / 1000


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as place:
        for name, make in (("run", large_run), ("game", large_game)):
            folder = make(Path(place, name), number)
            started = time.perf_counter()
            page = write_report(folder)
            written = time.perf_counter() - started
            seconds = min(opened(page) for _ in range(3))
            size = page.stat().st_size / 1e6
            print(
                f"{name} of {number:,}: {size:.2f} MB, written in {written:.1f} s, opens in {seconds:.2f} s"
            )


if __name__ == "__main__":
    main()
