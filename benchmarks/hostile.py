"""Everything that goes wrong, thousands of times: how often nothing is lost, nobody wronged, nothing left.

python benchmarks/hostile.py replies 10000    mutated replies through the inline engine
python benchmarks/hostile.py ray 500          the same through Ray
python benchmarks/hostile.py folders 1000     damaged run folders, replayed, resumed and reported
python benchmarks/hostile.py writes           a failure at every single write of a small run
python benchmarks/hostile.py signals 200      KILL, TERM and INT at random moments of five commands
python benchmarks/hostile.py observations 100000   attacked and reported: memory
"""

import argparse
import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from damages import damage, judged
from faulty_disk import FaultyDisk, PowerCut
from mutations import play_mutated
from small_settings import DATA

import fedsim.lab.record
from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.core.errors import FedsimError
from fedsim.core.types import Observation, Truth
from fedsim.lab.experiment import Experiment, run
from fedsim.lab.resume import resume
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Status

SMALL = (*DATA, "federation.clients=3", "federation.batch_size=6", "metric=[leacc,lnacc,irec]", "name=test")
ALL_TOLD = "federation.disclose=[num_examples,learning_rate,local_steps,loss,class_counts]"
LEFT_AFTER = 10.0  # seconds


def small(*overrides: str) -> Experiment:
    return build.experiment(compose([*SMALL, *overrides]))


def no_report(folder: RunFolder, *_: object) -> Path:
    return folder.path


def replies(number: int, into: Path, engine: str = "inline", rounds: int = 20) -> None:
    """One mutated reply a round."""
    fedsim.lab.record.write_report = no_report
    found = Counter[tuple[str, bool]]()
    for seed in range(-(-number // rounds)):
        model = ("softmax", "mlp")[seed % 2]
        rules = (f"federation.rounds={rounds}", "attack=none", "federation.evaluate_every=0", ALL_TOLD)
        experiment = small(*rules, f"model={model}", f"engine={engine}", f"seed={seed}")
        found += play_mutated(experiment, into / f"{seed}", seed)
        shutil.rmtree(into)
    print(
        f"{engine}: {sum(found.values())} mutated replies: the guilty named or taken as sent, and nobody else"
    )
    for how in sorted({how for how, _ in found}):
        print(f"  {how:<10} taken {found[how, True]:>5}   refused {found[how, False]:>5}")


def folders(number: int, into: Path) -> None:
    """Damages to a complete and to an interrupted run, and a command on each."""
    rules, found = ("federation.rounds=3", "model=softmax"), Counter[str]()
    whole, cut = run(small(*rules), into / "whole").path, into / "cut"
    fail(small(*rules), cut, 170, PowerCut())
    for seed in range(number):
        drawn = random.Random(seed)
        command = drawn.choice(["replay", "replay", "resume", "resume", "report"])
        copy = into / f"copy {seed}"
        shutil.copytree(cut if command == "resume" else whole, copy)
        how = damage(copy, drawn)
        verdict, outcome = judged(copy, command, whole)
        found[verdict] += 1
        if verdict not in ("complained", "right"):
            print(f"{seed}: {command} {how}: {verdict} {outcome}")
        for path in into.glob("copy *"):
            shutil.rmtree(path)
    print(f"{number} damaged folders: " + ", ".join(f"{count} {verdict}" for verdict, count in found.items()))


def fail(experiment: Experiment, path: Path, moment: int, error: BaseException) -> None:
    """Play a run on a disk that fails."""
    originals = {
        name: getattr(os, name) for name in ("write", "fsync", "replace", "ftruncate", "unlink", "mkdir")
    }
    try:
        FaultyDisk(SimpleNamespace(setattr=setattr), path, moment, error)
        run(experiment, path)
    except (PowerCut, FedsimError):
        pass
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def writes(number: int, into: Path) -> None:
    """Every call that changes the run folder fails once, in three ways; the run is resumed."""
    fedsim.lab.record.write_report = no_report
    rules, found, moment = ("federation.rounds=2", "model=softmax"), Counter[str](), 0
    whole = results(run(small(*rules), into / "whole"))
    errors = {"power cut": lambda: PowerCut()}
    errors |= {"disk full": lambda: OSError(errno.ENOSPC, "No space left on device")}
    errors |= {"broken disk": lambda: OSError(errno.EIO, "Input/output error")}
    for words, error in errors.items():
        for moment in range(1, 10_000):
            path = into / "dies"
            fail(small(*rules), path, moment, error())
            folder = RunFolder(path)
            if folder.status is Status.COMPLETE:
                assert results(folder) == whole  # a write that did not matter, or none is left
                done = moment > 300
            else:
                done = False
                if folder.storage.has("config.yaml") and (path / "config.yaml").exists():
                    resume(small(*rules), folder)
                else:
                    shutil.rmtree(path, ignore_errors=True)
                    run(small(*rules), path)
                found[
                    f"{words}: as the whole run" if results(folder) == whole else f"{words}: OTHERWISE"
                ] += 1
            shutil.rmtree(path, ignore_errors=True)
            if done:
                break
    print(f"failures at every write: {dict(found)}")


def results(folder: RunFolder) -> object:
    """What must be the same, to the last bit."""
    weights = {name: tensor.numpy().tobytes() for name, tensor in folder.last_round()[1].items()}
    guesses = [folder.guess(*place).class_counts.tolist() for place in folder.guessed()]  # type: ignore[union-attr]
    return folder.scores(), folder.history(), folder.observed(), weights, guesses


RUN = (*SMALL, "model=softmax", "federation.rounds=12")
SLOW = (*SMALL, "model=softmax", "federation.rounds=2", "attack=ig", "attack.optimiser.iterations=150")


def commands(folder: Path, source: Path) -> dict[str, tuple[list[str], float]]:
    """What is interrupted, and how many seconds it takes about."""
    compare = ["compare", "attack=[ilrg,idlg]", "defense=[none,noise]", f"into={folder}"]
    plain = [setting for setting in RUN if not setting.startswith("name=")]
    attack = ["attack=ig", "attack.optimiser.iterations=150", "metric=[lnacc,psnr]", "attackers=2"]
    return {
        "run": ([*RUN, f"hydra.run.dir={folder}"], 7.0),
        "sweep": (["-m", *RUN, "seed=0,1", "federation.rounds=5", f"hydra.sweep.dir={folder}"], 8.0),
        "replay": (["replay", str(source), *attack, f"hydra.run.dir={folder}"], 14.0),
        "compare": ([*compare, *plain, "federation.rounds=4"], 16.0),
        "ray": ([*RUN, "federation.rounds=3", "engine=ray", f"hydra.run.dir={folder}"], 22.0),
    }


def signals(number: int, into: Path, first: int = 0) -> None:
    """Send a signal at a random moment, look what is left after ten seconds, resume, compare."""
    run(build.experiment(compose(list(SLOW))), source := into / "source")
    whole = {}
    for name, (arguments, _) in commands(into / "whole", source).items():
        assert fedsim_process(arguments, into / "tmp", "whole").wait() == 0
        whole[name] = all_results(into / "whole")
        shutil.rmtree(into / "whole")
    found = Counter[str]()
    for seed in range(first, first + number):
        drawn = random.Random(seed)
        name = drawn.choice(list(whole))
        number_sent = drawn.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        folder, mark = into / f"{seed}", f"mark-{seed}-{os.getpid()}"
        arguments, seconds = commands(folder, source)[name]
        process = fedsim_process(arguments, into / "tmp", mark)
        time.sleep(drawn.uniform(0.3, seconds))
        if process.poll() is None:
            # Ctrl-C is for all in the terminal, a signal for one process.
            os.killpg(process.pid, number_sent) if number_sent == signal.SIGINT else process.send_signal(
                number_sent
            )
        process.wait(300)  # it may have much to write on a busy machine
        deadline = time.monotonic() + LEFT_AFTER
        while (left := [*processes_of(mark), *(into / "tmp").iterdir()]) and time.monotonic() < deadline:
            time.sleep(0.1)
        finish(name, arguments, folder, into / "tmp")
        same = all_results(folder) == whole[name]
        found["nothing left, resumed to the same bits" if same and not left else "OTHERWISE"] += 1
        if left or not same:
            print(f"{seed}: {name}, {number_sent.name}: left {left}, same: {same}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        for path in (into / "tmp").iterdir():
            shutil.rmtree(path, ignore_errors=True)
    print(f"{number} signals: {dict(found)}")


def fedsim_process(arguments: Sequence[str], temporary: Path, mark: str) -> subprocess.Popen[bytes]:
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "fedsim", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ) | {"TMPDIR": str(temporary), "FEDSIM_MARK": mark},
        start_new_session=True,
    )


def processes_of(mark: str) -> list[str]:
    """Return the processes that still have a mark in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " ")[:80] or entry.name)
        except OSError:  # gone, or another user's
            continue
    return found


def finish(name: str, arguments: Sequence[str], folder: Path, temporary: Path) -> None:
    """Go on with what was interrupted, as a user would: many runs by the same command, one by resume."""
    if name in ("compare", "sweep") or not (folder / "config.yaml").exists():
        if name not in ("compare", "sweep"):
            shutil.rmtree(folder, ignore_errors=True)
        assert fedsim_process(arguments, temporary, "again").wait() == 0, arguments
    elif RunFolder(folder).status is not Status.COMPLETE:
        assert fedsim_process(["resume", str(folder)], temporary, "resume").wait() == 0, folder


def all_results(folder: Path) -> object:
    """Scores, history, guesses and models of every run below a folder."""
    found = {}
    for path in sorted(folder.rglob("config.yaml")):
        run_folder = RunFolder(path.parent)
        assert run_folder.status is Status.COMPLETE, (path, run_folder.status)
        if run_folder.kind not in ("run", "replay"):  # what holds them
            continue
        weights = {name: tensor.numpy().tobytes() for name, tensor in run_folder.last_round()[1].items()}
        found[str(path.relative_to(folder))] = run_folder.scores(), run_folder.history(), weights
    return found


def observations(number: int, into: Path) -> None:
    """So many tiny observations are attacked, scored and reported; Linux says how much memory that took."""
    experiment = small("model=softmax", "attack=ilrg", "federation.clients=1000", "data.train_size=8000")
    experiment_rounds = -(-number // 1000)
    folder, sent = RunFolder(into / "many"), {n: p.detach() for n, p in experiment.model.named_parameters()}
    folder.begin("run", experiment.config_text)
    generator = torch.Generator().manual_seed(0)
    started = time.perf_counter()
    for round in range(1, experiment_rounds + 1):
        for client in range(1000):
            received = {name: torch.randn(t.shape, generator=generator) for name, t in sent.items()}
            told = {"round": round, "client": client, "num_examples": 6}
            folder.keep_observation(Observation(sent=sent, received=received, kind="gradient", **told))
            labels = torch.randint(4, (6,), generator=generator)
            images = torch.rand(6, 1, 8, 8, generator=generator)
            folder.keep_truth(Truth(round=round, client=client, images=images, labels=labels))
    print(f"written in {time.perf_counter() - started:.0f} s", flush=True)
    started = time.perf_counter()
    from fedsim.lab.experiment import replay

    replay(experiment, folder, into / "replay")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    page = (into / "replay" / "report.html").stat().st_size / 1e6
    seconds = time.perf_counter() - started
    print(f"{number} observations attacked, scored and reported:")
    print(f"  {seconds:.0f} s, {peak:.2f} GB, page {page:.1f} MB")


def main() -> None:
    parts: dict[str, tuple[Callable[[int, Path], None], int]] = {
        "replies": (replies, 10_000),
        "ray": (lambda number, into: replies(number, into, "ray"), 500),
        "folders": (folders, 1000),
        "writes": (writes, 0),
        "signals": (lambda number, into: signals(number, into, chosen.first), 200),
        "observations": (observations, 100_000),
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=parts)
    parser.add_argument("number", nargs="?", type=int)
    parser.add_argument("--first", type=int, default=0, help="of the seeds of signals")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[-1], os.environ.get("PYTHONPATH", "")])  # for Ray
    for name, (part, usual) in parts.items():
        if chosen.part in (None, name):
            with tempfile.TemporaryDirectory(prefix="h", dir="/tmp") as folder:
                part(chosen.number or usual, Path(folder))


if __name__ == "__main__":
    main()
