"""kill -9 at random moments of a 20-round run, 20 times: does `fedsim resume` end with the same figures?

python benchmarks/resume.py (five minutes)
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedsim.storage.runfolder import RunFolder

KILLS = 20
SETTINGS = (
    "model=lenet5",
    "federation.rounds=20",
    "federation.clients=12",
    "federation.batch_size=16",
    "attack=ilrg",
    "metric=[lnacc]",
)


def fedsim(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedsim", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def begun(folder: Path) -> subprocess.Popen[bytes]:
    """Start the run, and wait until there is something to resume."""
    process = fedsim(*SETTINGS, f"hydra.run.dir={folder}")
    while not (folder / "config.yaml").exists():
        assert process.poll() is None, "the run ended by itself"
        time.sleep(0.01)
    return process


def figures(folder: Path) -> tuple[object, ...]:
    run = RunFolder(folder)
    return run.summary().get("status"), run.scores(), run.history(), run.guessed(), run.summary()["metrics"]


def main() -> None:
    chance = random.Random(7)
    with tempfile.TemporaryDirectory() as name:
        whole, same, moments = Path(name) / "whole", 0, []
        process = begun(whole)
        started = time.monotonic()
        process.wait()
        seconds = time.monotonic() - started
        for number in range(KILLS):
            folder = Path(name) / str(number)
            process = begun(folder)
            time.sleep(chance.uniform(0, seconds))
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            moments.append(RunFolder(folder).last_round()[0])
            fedsim("resume", str(folder)).wait()
            same += figures(folder) == figures(whole)
            print(f"killed after round {moments[-1]}: {same} of {number + 1} the same", flush=True)
    print(f"killed after rounds {sorted(moments)}: {same} of {KILLS} resumed to the same figures")


if __name__ == "__main__":
    main()
