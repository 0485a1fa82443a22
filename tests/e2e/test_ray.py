"""Flower's simulation engine gives bit for bit what the inline engine gives."""

from pathlib import Path

import pytest
import torch

from fedsim.errors import FedsimError
from fedsim.runfolder import RunFolder


def same(left: RunFolder, right: RunFolder) -> None:
    pairs = list(zip(left.observations(), right.observations(), strict=True))
    assert pairs
    for a, b in pairs:
        assert (a.round, a.client, a.num_examples) == (b.round, b.client, b.num_examples)
        for side in ("sent", "received"):
            one, two = getattr(a, side), getattr(b, side)
            assert all(torch.equal(one[name], two[name]) for name in one)
    assert left.scores() == right.scores()
    assert left.history() == right.history()


@pytest.mark.slow
def test_ray_and_inline_agree_bit_for_bit_also_twice_in_one_process(play_small, tmp_path: Path) -> None:
    rules = ("model=lenet5", "data.shape=[3,32,32]", "federation.clients=4", "federation.participation=0.75")
    remembering = ("defense=[noise,sparsify,secure_aggregation]", "defense.sparsify.error_feedback=true")
    for mode in (("federation=fedsgd",), ("federation=fedavg", *remembering)):
        shared = (*mode, *rules)
        inline = play_small(*shared, folder=f"inline {mode[0]}")
        same(inline, play_small(*shared, "engine=ray", folder=f"ray {mode[0]}"))


@pytest.mark.slow
def test_a_failing_client_ends_alike_on_ray(play_small) -> None:
    rules = ("federation.labels=one_per_class", "federation.batch_size=5", "engine=ray")
    with pytest.raises(FedsimError, match=r"none of 3 clients.*one_per_class: expected batch_size <= 4"):
        play_small(*rules)
