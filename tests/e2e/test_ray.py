"""Flower's simulation engine gives bit for bit what the inline engine gives; once also in contracts."""

import pytest
from engines_alike import ALIKE, same

from fedsim.core.errors import FedsimError


@pytest.mark.slow
def test_ray_and_inline_agree_bit_for_bit_also_twice_in_one_process(play_small) -> None:
    some = ("model=lenet5", "data.shape=[3,32,32]", "federation.clients=4", "federation.participation=0.75")
    summed = (*some, "defense=[noise,secure_aggregation]", "attackers=2")  # attacks on Ray, too
    for number, rules in enumerate([ALIKE, summed]):
        inline = play_small(*rules, folder=f"inline {number}")
        same(inline, play_small(*rules, "engine=ray", folder=f"ray {number}"))


@pytest.mark.slow
def test_a_failing_client_ends_alike_on_ray(play_small) -> None:
    rules = ("federation.labels=one_per_class", "federation.batch_size=5", "engine=ray")
    with pytest.raises(FedsimError, match=r"none of 3 clients.*one_per_class: expected batch_size <= 4"):
        play_small(*rules)
