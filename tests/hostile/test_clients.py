"""A client that dies, hangs, exits, rants or swells is named, and nobody else; the run goes on."""

from pathlib import Path

import pytest
import torch

from fedsim.storage.runfolder import RunFolder

RULES = ("federation=fedavg", "federation.rounds=3", "federation.clients=4", "model=mlp", "attack=none")
HERE = str(Path(__file__).parents[1])


def with_one(kind: str) -> tuple[str, ...]:
    return (*RULES, f"+client.bad={{_target_: hostile_clients.{kind}, share: 0.25, round: 2}}")


def check(folder: RunFolder, words: str) -> None:
    (guilty,) = folder.malicious()
    assert [(fault.round, fault.client) for fault in folder.faults()] == [(2, guilty)]
    assert words in folder.faults()[0].reason
    seen = [(round, client) for round in (1, 2, 3) for client in range(4) if (round, client) != (2, guilty)]
    assert folder.observed() == seen
    assert folder.status == "complete"
    assert all(torch.isfinite(tensor).all() for tensor in folder.last_round()[1].values())


INLINE = {
    "Sleeps": "no reply within 1 s",
    "Exits": "the client failed: SystemExit: 0",
    "Rants": "the client failed: ValueError: \\ud800 \\x1b]0;owned",
    "Swells": "would overflow the mean",
    "Swells30": "it holds 1e+30 and wrecks the model",
    "Swells12": "it holds 1e+12 and wrecks the model",
}


@pytest.mark.parametrize("kind", INLINE)
def test_inline(play_small, kind: str) -> None:
    limit = ("federation.timeout=1",) if kind == "Sleeps" else ()
    folder = play_small(*with_one(kind), *limit)
    check(folder, INLINE[kind])
    page = (folder.path / "report.html").read_text()
    assert "<script>alert" not in page
    assert len(page) < 2_000_000


@pytest.mark.slow
def test_ray(play_small, monkeypatch) -> None:
    """All at once: each takes its own process down, or holds it up, and no other."""
    kinds = {
        "Dies": "its process died",
        "Stuck": "its process died",
        "Sleeps": "no reply within 15 s",
        "Exits": "SystemExit: 0",
        "Rants": "\\x1b]0;owned",
    }
    monkeypatch.setenv("PYTHONPATH", HERE)
    bad = [f"+client.{k}={{_target_: hostile_clients.{k}, share: 0.125, round: 1}}" for k in kinds]
    few = ("federation.clients=8", "federation.rounds=2", "federation.timeout=15")
    folder = play_small(*RULES, *few, *bad, "engine=ray")
    guilty = folder.malicious()
    assert {(fault.round, guilty[fault.client]) for fault in folder.faults()} == {(1, kind) for kind in kinds}
    for fault in folder.faults():
        assert kinds[guilty[fault.client]] in fault.reason
    assert len(folder.faults()) == len(kinds)
    assert len(folder.observed()) == 2 * 8 - len(kinds)
    assert folder.status == "complete"
