"""A quarter of the clients cheats, audited: how well does the model learn? A part of proof_bars.py.

Who is rejected in its first round is asked no more, so what is learnt does not depend on how it cheated: each
spoof plays that round, and only the free rider all twenty.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from proof_clients import SPOOFS

from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.lab.experiment import run
from fedsim.storage.runfolder import RunFolder

ACCEPTED = ("planned_data",)  # it trains, on data that is worth nothing


def audit(seed: int, challenges: int) -> None:
    """The federation of experiment=pol_audit, one seed for 20 challenges."""
    print("\naudited, 2 of 8 clients cheat: accuracy after 20 rounds without and with, rejected in round 1")
    for number in range(max(1, challenges // 20)):
        clean, cheated = (accuracy(seed + number, 20, client) for client in ("[]", "[free_rider]"))
        print(f"seed {seed + number}: {clean:.3f}, {cheated:.3f}", end="; ", flush=True)
        spoofs = [name for name in SPOOFS if name not in ACCEPTED] if number == 0 else ["free_rider"]
        told = {name: rejected(seed + number, name) for name in spoofs}
        others = {name: who for name, who in told.items() if who != told["free_rider"]}
        print(f"{told['free_rider']}, of {len(told)} spoofs all the same but {others or 'none'}", flush=True)


def accuracy(seed: int, rounds: int, client: str) -> float:
    """Return the accuracy after so many rounds."""
    with tempfile.TemporaryDirectory() as name:
        return float(played(seed, rounds, client, Path(name)).history()[-1].accuracy)


def rejected(seed: int, client: str) -> Sequence[int]:
    """Return which clients the first round rejects."""
    with tempfile.TemporaryDirectory() as name:
        verdicts = played(seed, 1, f"[{client}]", Path(name)).verdicts()
        return [verdict.client for verdict in verdicts if not verdict.accepted]


def played(seed: int, rounds: int, client: str, folder: Path) -> RunFolder:
    """Play the federation."""
    settings = ["experiment=pol_audit", f"client={client}", f"seed={seed}", f"federation.rounds={rounds}"]
    return run(build.experiment(compose([*settings, "name=benchmark", "audit.keep=false"])), folder / "run")
