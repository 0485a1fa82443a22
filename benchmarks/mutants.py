"""How many small changes to the methods do the fast tests notice? `make mutants`, or of some files:

    python benchmarks/mutants.py attacks/privacy/labels --sample 100 --seed 1
    python benchmarks/mutants.py --essential     every method without its essential step: all must be noticed

The checkout stays as it is: a forked process imports a changed file in place of the written one. A mutant is
met by the tests that run its line, the fastest first, until one fails. Which tests those are is traced once
for each file of tests, which takes a quarter of an hour, and kept in build/mutants.
"""

import argparse
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from mutation import coverage
from mutation.changes import Mutant, mutants
from mutation.essential_steps import STEPS, Step, missing, without
from mutation.forks import fork, outcome, preload

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = [ROOT / name for name in ("attacks", "defenses", "fedsim/metrics", "fedsim/integrity")]
BAR = 0.85
Runs = Mapping[str, Mapping[int, list[str]]]  # file, line: the tests that run it


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", help="files or folders to change; all methods unless told")
    parser.add_argument("--essential", action="store_true", help="remove essential steps, nothing else")
    parser.add_argument("--sample", type=int, help="how many mutants; all unless told")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--budget", type=float, default=30, help="seconds of tests that a mutant is met with")
    parser.add_argument("--tests", nargs="*", default=["tests"], help="files or folders of tests")
    chosen = parser.parse_args()
    _alone()
    tests = sorted(path for name in chosen.tests for path in python_files(ROOT / name, "test_*.py"))
    preload(ROOT, tests)
    runs, seconds = traced(tests)
    if chosen.essential:
        raise SystemExit(essential(runs, seconds, chosen.paths, chosen.budget))
    files = sorted(path for name in chosen.paths or FOLDERS for path in python_files(ROOT / name, "*.py"))
    every = [mutant for path in files for mutant in mutants(path)]
    drawn = random.Random(chosen.seed).sample(every, min(chosen.sample or len(every), len(every)))
    print(f"{len(every)} mutants of {len(files)} files, {len(drawn)} drawn by seed {chosen.seed}", flush=True)
    report(drawn, runs, seconds, chosen.budget)


def _alone() -> None:
    """Have this process and its forks find this checkout, on one thread, and leave no bytecode in it."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(ROOT / coverage.FOLDER / "hypothesis")
    sys.dont_write_bytecode = True
    os.chdir(ROOT)


def python_files(path: Path, pattern: str) -> list[Path]:
    if not path.exists():
        raise SystemExit(f"expected a file or folder of this checkout, got {path}")
    return [path] if path.is_file() else [found.resolve() for found in path.rglob(pattern)]


def traced(tests: Sequence[Path]) -> tuple[Runs, dict[str, float]]:
    """Return which tests run which line, and what each takes; trace those whose map is not kept."""
    runs: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    seconds = dict[str, float]()
    for file in tests:
        found = coverage.load(ROOT, file, FOLDERS)
        if found is None:
            started = time.monotonic()
            os.waitpid(fork(lambda file=file: coverage.trace(ROOT, file, FOLDERS) or 0), 0)  # type: ignore[misc]
            found = coverage.load(ROOT, file, FOLDERS)
            words = "cannot be run" if found is None else f"{len(found)} tests"
            print(f"traced {file.relative_to(ROOT)}: {words}, {time.monotonic() - started:.0f} s", flush=True)
        for test, told in (found or {}).items():
            seconds[test] = told["seconds"]
            for name, lines in told["lines"].items():
                for line in lines:
                    runs[name][line].append(test)
    return runs, seconds


def affordable(tests: Sequence[str], seconds: Mapping[str, float], budget: float) -> dict[str, float]:
    """Return the fastest of these tests that fit into a budget; one at least."""
    taken, total = dict[str, float](), 0.0
    for test in sorted(set(tests), key=lambda test: (seconds[test], test)):
        if taken and total + seconds[test] > budget:
            break
        taken[test], total = seconds[test], total + seconds[test]
    return taken


def met_by(mutant: Mutant, runs: Runs, seconds: Mapping[str, float]) -> list[str]:
    """Return the tests that run a mutant's line; of a file's own lines, whoever runs or names the file."""
    lines = runs.get(str(mutant.path.relative_to(ROOT)), {})
    if mutant.in_function:
        return list(lines.get(mutant.line, ()))
    named = [test for test in seconds if mutant.path.stem in test]  # a yaml's, of a default
    return [test for tests in lines.values() for test in tests] + named


def report(drawn: Sequence[Mutant], runs: Runs, seconds: Mapping[str, float], budget: float) -> None:
    """Meet each mutant with its tests; print survivors as they come, and the shares at last."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    met = {mutant: affordable(met_by(mutant, runs, seconds), seconds, budget) for mutant in drawn}
    sound = {
        path: control(path, [tests for m, tests in met.items() if m.path == path])
        for path in {m.path for m in drawn}
    }
    for mutant, tests in met.items():
        end = outcome(mutant.path, mutant.code, tests, ROOT) if tests else "uncovered"
        if end in ("killed", "hung") and not sound[mutant.path]:
            end = "doubtful"
        name = mutant.path.relative_to(ROOT)
        for folder in ("all", str(name.parent)):
            counts[folder][end] += 1
        if end in ("survived", "uncovered"):
            number = f" ({len(tests)} tests)" if tests else ""
            print(f"{end}: {name}:{mutant.line}: {mutant.what}{number}", flush=True)
    columns = ("mutants", "killed", "hung", "survived", "uncovered", "doubtful", "score")
    print(f"\n{'folder':32}", *(f"{column:>9}" for column in columns))
    for folder, count in sorted(counts.items()):
        total = count.total()
        score = (count["killed"] + count["hung"]) / total
        print(f"{folder:32} {total:9}", *(f"{count[end]:9}" for end in columns[1:-1]), f"{score:9.1%}")
    print(f"bar: {BAR:.0%}")


def control(path: Path, tests: Sequence[Mapping[str, float]]) -> bool:
    """Say whether the file as it is passes the tests that its mutants meet, here and in this order."""
    together = {test: seconds for some in tests for test, seconds in some.items()}
    code = compile(path.read_text(encoding="utf-8"), str(path), "exec")
    sound = not together or outcome(path, lambda: code, together, ROOT) == "survived"
    if not sound:
        print(f"doubtful: {path.relative_to(ROOT)} fails these tests unchanged", flush=True)
    return sound


def essential(runs: Runs, seconds: Mapping[str, float], paths: Sequence[str], budget: float) -> int:
    """Remove essential steps one by one; return 1 if one is not missed or a method names none."""
    for name in (absent := missing(ROOT)):
        print(f"no essential step is named for {name}")
    steps = [step for step in STEPS if not paths or step.path.startswith(tuple(paths))]
    missed = list[Step]()
    for step in steps:
        code, lines = without(ROOT, step)
        table = runs.get(step.path, {})
        running = [test for line in lines for test in table.get(line, ())]
        if not table:  # a file without functions: whoever names it
            running = [test for test in seconds if step.name.split("/")[1] in test]
        tests = affordable(running, seconds, budget)
        end = outcome(ROOT / step.path, lambda code=code: code, tests, ROOT) if tests else "uncovered"  # type: ignore[misc]
        if end in ("survived", "uncovered"):
            missed.append(step)
            print(f"{end}: {step.name}: {step.path} {step.function} with {step.instead!r}", flush=True)
    print(f"essential steps: {len(steps) - len(missed)} of {len(steps)} noticed when gone; bar: all of them")
    return int(bool(missed or absent))


if __name__ == "__main__":
    main()
