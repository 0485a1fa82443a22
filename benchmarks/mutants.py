"""How many small changes to the methods do the fast tests notice? `make mutants`, or of some files:

    python benchmarks/mutants.py attacks/privacy/labels --sample 100 --seed 1
    python benchmarks/mutants.py --essential     every method without its essential step: all must be noticed

The checkout stays as it is: a forked process imports a changed file in place of the written one. A mutant is
met by the tests that run its line, the fastest first, until one fails or four times their time has passed.
Which tests those are is traced once for each file of tests, which takes a quarter of an hour, and kept in
build/mutants. Changes that nobody could notice are in mutation/equivalents.yaml with the reason, and do not
count.
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
from mutation.equivalents import equivalents, key, outdated
from mutation.essential_steps import STEPS, Step, missing, without
from mutation.forks import by_time, fork, outcome, preload

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = [ROOT / name for name in ("attacks", "defenses", "fedsim/metrics", "fedsim/integrity")]
TESTS = ["tests/unit", "tests/contracts", "tests/golden"] + [
    f"tests/e2e/test_{name}.py" for name in ("stein_runs", "audits", "forging_games", "forged_traces")
]
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
    parser.add_argument("--tests", nargs="*", default=TESTS, help="files or folders of tests")
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
    for row in outdated(ROOT, equivalents(), every):
        print(f"equivalents.yaml names what is no mutant any more: {row}")
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
        found = coverage.load(ROOT, file)
        if found is None:
            started = time.monotonic()
            os.waitpid(fork(lambda file=file: coverage.trace(ROOT, file, FOLDERS) or 0), 0)  # type: ignore[misc]
            found = coverage.load(ROOT, file)
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
    if mutant.function:  # of an expression on lines of its own, Python may tell the statement's alone
        own = lines.get(mutant.line, ())
        return list(own or [test for line in mutant.statement for test in lines.get(line, ())])
    named = [test for test in seconds if mutant.path.stem in test]  # a yaml's, of a default
    return [test for tests in lines.values() for test in tests] + named


def report(drawn: Sequence[Mutant], runs: Runs, seconds: Mapping[str, float], budget: float) -> None:
    """Meet each mutant with its tests; print survivors as they come, and the shares at last."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    known = equivalents()
    sound = dict[str, bool]()
    for mutant in drawn:
        tests = affordable(met_by(mutant, runs, seconds), seconds, budget)
        end = noticed(mutant, tests, sound) if tests else "uncovered"
        name = mutant.path.relative_to(ROOT)
        if (why := known.get(key(ROOT, mutant))) is not None:
            if end == "killed":
                print(f"not equivalent, a test fails: {mutant.path}:{mutant.line}: {mutant.what}: {why}")
            else:
                end = "equivalent"
        for folder in ("all", str(name.parent)):
            counts[folder][end] += 1
        if end in ("survived", "uncovered"):
            number = f" ({len(tests)} tests)" if tests else ""
            print(f"{end}: {name}:{mutant.line}: {mutant.what}{number}   in   {mutant.text}", flush=True)
    columns = ("mutants", "killed", "hung", "survived", "uncovered", "doubtful", "equivalent", "score")
    print(f"\n{'folder':32}", *(f"{column:>10}" for column in columns))
    for folder, count in sorted(counts.items()):
        real = count.total() - count["equivalent"]
        score = (count["killed"] + count["hung"]) / max(real, 1)
        shown = [count.total(), *(count[end] for end in columns[1:-1])]
        print(f"{folder:32}", *(f"{number:10}" for number in shown), f"{score:10.1%}")
    print(f"bar: {BAR:.0%}")


def noticed(mutant: Mutant, tests: Mapping[str, float], sound: dict[str, bool]) -> str:
    """Meet a mutant with tests. Whoever fails must pass on the file as it is, after the same tests."""
    found = outcome(mutant.path, mutant.code, tests, ROOT)
    if found.end == "survived":
        return "survived"
    killer = found.killer or (max if found.end == "hung" else min)(tests, key=by_time(tests))
    if killer not in sound:
        before = {test: tests[test] for test in tests if by_time(tests)(test) <= by_time(tests)(killer)}
        code = compile(mutant.path.read_text(encoding="utf-8"), str(mutant.path), "exec")
        sound[killer] = outcome(mutant.path, lambda: code, before, ROOT).end == "survived"
        if not sound[killer]:
            print(f"doubtful: {killer} fails without a change", flush=True)
    return found.end if sound[killer] else "doubtful"


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
        if not table:  # no function that is traced: whoever names the method or the file
            names = (step.name.split("/")[1], Path(step.path).stem)
            running = [test for test in seconds if any(name in test for name in names)]
        tests = affordable(running, seconds, budget)
        end = outcome(ROOT / step.path, lambda code=code: code, tests, ROOT).end if tests else "uncovered"  # type: ignore[misc]
        if end in ("survived", "uncovered"):
            missed.append(step)
            print(f"{end}: {step.name}: {step.path} {step.function} with {step.instead!r}", flush=True)
    print(f"essential steps: {len(steps) - len(missed)} of {len(steps)} noticed when gone; bar: all of them")
    return int(bool(missed or absent))


if __name__ == "__main__":
    main()
