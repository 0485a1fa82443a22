"""Mutated replies on the real message path: the guilty are named, nobody else; what is kept was averaged."""

from pathlib import Path

import pytest
from mutations import MUTATIONS, play_mutated

RULES = ("federation.rounds=30", "attack=none", "federation.evaluate_every=0")
RULES += ("federation.disclose=[num_examples,learning_rate,local_steps,loss,class_counts]",)


@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_mutated_replies_blame_nobody_else(small, tmp_path: Path, model: str) -> None:
    """benchmarks/hostile.py plays ten thousand of them."""
    found = play_mutated(small(*RULES, f"model={model}"), tmp_path / "run", seed=1)
    assert sum(found.values()) == 30
    assert {taken for _, taken in found} == {True, False}
    assert len({how for how, _ in found}) > len(set(MUTATIONS)) / 2
