"""Settings are right, or refused with the key, what was expected and what came."""

import math
import re

import pytest

from fedsim.attacks.integrity.forging.box import Box
from fedsim.attacks.integrity.forging.forger import Forger
from fedsim.attacks.integrity.forging.greedy import Greedy
from fedsim.attacks.integrity.spoofing.blindfold import Blindfold
from fedsim.attacks.integrity.spoofing.free_rider import FreeRider
from fedsim.attacks.privacy.labels.ilrg import ILRG
from fedsim.attacks.privacy.stein.stein import Stein
from fedsim.core.errors import FedsimError
from fedsim.core.federation import Federation
from fedsim.core.settings import listed, number, one_of, optional, seconds, switch, whole, word
from fedsim.core.types import Task
from fedsim.data.synthetic import synthetic
from fedsim.data.text import text
from fedsim.data.tiny import tiny
from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
from fedsim.models.mlp import mlp
from fedsim.models.two_layer import two_layer

KEY = "part.setting"
TASK = Task(input_shape=(1, 2, 2), num_classes=2, mean=(0.5,), std=(0.25,))
NO_NUMBERS = [True, False, math.nan, "1", None, [1], 1j]


def refuses(check, value, *rules, **limits) -> str:
    """Return what a check expected."""
    with pytest.raises(FedsimError) as caught:
        check(KEY, value, *rules, **limits)
    found = re.fullmatch(rf"{re.escape(KEY)}: expected (.*), got {re.escape(repr(value))}", str(caught.value))
    assert found, str(caught.value)
    return found[1]


def test_whole_numbers() -> None:
    assert [whole(KEY, value) for value in (1, 2, 10**30)] == [1, 2, 10**30]
    assert whole(KEY, 0, 0) == 0
    assert whole(KEY, -5, None) == -5
    assert (whole(KEY, 2, 2, 4), whole(KEY, 4, 2, 4)) == (2, 4)
    for value in [*NO_NUMBERS, 0, -1, 1.0, math.inf]:
        assert refuses(whole, value) == "a whole number of at least 1"
    assert {refuses(whole, value, 2, 4) for value in (1, 5, 3.0)} == {"a whole number in [2, 4]"}
    assert {refuses(whole, value, None) for value in (True, 1.5)} == {"a whole number"}


@pytest.mark.parametrize(
    ("limits", "right", "wrong", "expected"),
    [
        ({}, [-1e308, 0, 1.5], [10**400, -(10**400)], "a number"),
        ({"above": 0}, [5e-324, 1, 1e308], [0, -1], "a positive number"),
        ({"least": 0}, [0, 0.0, 2], [-5e-324], "a number of at least 0"),
        ({"above": 2}, [2.1], [2], "a number above 2"),
        ({"below": 2}, [-9, 1.9], [2], "a number below 2"),
        ({"most": 2}, [-9, 2], [2.1], "a number of at most 2"),
        ({"least": 0, "below": 1}, [0, 0.99], [1, -0.1], "a share in [0, 1)"),
        ({"above": 0, "most": 1}, [0.01, 1], [0, 1.1], "a share in (0, 1]"),
        ({"above": 0, "below": 1}, [0.5], [0, 1], "a share in (0, 1)"),
        ({"least": 0, "most": 1}, [0, 1], [-0.1, 1.1], "a share in [0, 1]"),
        ({"least": 2, "most": 4}, [2, 4], [1, 5], "a number in [2, 4]"),
    ],
)
def test_numbers(limits, right, wrong, expected) -> None:
    for value in right:
        assert number(KEY, value, **limits) == value
    for value in [*NO_NUMBERS, math.inf, -math.inf, *wrong]:
        assert refuses(number, value, **limits) == expected


def test_an_infinity_where_it_means_something() -> None:
    assert number(KEY, math.inf, least=1, infinite=True) == math.inf
    for value in (math.nan, -math.inf, 10**400, "inf", True):
        refuses(number, value, infinite=True)


def test_seconds() -> None:
    assert (seconds(KEY, None), seconds(KEY, 2)) == (math.inf, 2.0)
    for value in (True, math.nan, math.inf, "2", 0, -1):
        assert refuses(seconds, value) == "a positive number"


def test_switches() -> None:
    assert switch(KEY, True) is True
    assert switch(KEY, False) is False
    for value in (0, 1, math.nan, "off", "true", None):
        assert refuses(switch, value) == "true or false"


def test_choices() -> None:
    assert one_of(KEY, "b", ("a", "b")) == "b"
    assert one_of(KEY, "a", {"a": 1, "b": 2}.keys()) == "a"
    assert one_of(KEY, 3, (1, 3)) == 3
    for value in ("c", "", True, math.nan, None, ["a"], {}):
        assert refuses(one_of, value, ("a", "b")) == "a or b"
    for value in (True, 1.0, "1", 2):
        assert refuses(one_of, value, (1, 3, 5)) == "one of 1, 3, 5"


def test_words() -> None:
    assert word(KEY, "a") == "a"
    for value in (True, math.nan, 1, None, ["a"]):
        assert refuses(word, value) == "a word"


def test_lists() -> None:
    assert listed(KEY, [1, 2, 3], "sides", whole, 3, 3) == [1, 2, 3]
    for value in ([1, 2], [1, 2, 3, 4]):
        assert refuses(listed, value, "sides", whole, 3, 3) == "sides"
    assert listed(KEY, [1, 2], "steps", whole) == [1, 2]
    assert listed(KEY, (1,), "steps", whole) == [1]
    assert listed(KEY, [], "steps", whole, least=0) == []
    for value in ([], [0], [1, True], [math.nan], "12", 1, None, {1: 2}):
        assert refuses(listed, value, "steps", whole) == "steps"


def test_none_where_it_is_allowed() -> None:
    assert optional(whole, KEY, None) is None
    assert optional(whole, KEY, 0, 0) == 0
    assert optional(number, KEY, 1, most=1) == 1
    for value in (True, math.nan, "1", 0):
        with pytest.raises(
            FedsimError, match=rf"^part\.setting: expected null or a whole .*, got {value!r}$"
        ):
            optional(whole, KEY, value)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: ILRG(max_amplification=math.nan), "attack.max_amplification"),
        (lambda: ILRG(max_amplification="5"), "attack.max_amplification"),
        (lambda: ILRG(rounding=["repair"]), "attack.rounding"),
        (lambda: Stein(order=3.0), "attack.order"),
        (lambda: Greedy(candidates=True), "forgery.candidates"),
        (lambda: Box(size=True), "forgery.size"),
        (lambda: Forger(fraction=math.nan), "client.forger.fraction"),
        (lambda: Blindfold(honest_steps=1.5), "client.blindfold.honest_steps"),
        (lambda: Blindfold(size="0.3"), "client.blindfold.size"),
        (lambda: FreeRider(noise=math.inf), "client.free_rider.noise"),
        (lambda: ProofOfLearning(rejected_weight=True), "audit.rejected_weight"),
        (lambda: ProofOfLearning(domain=["box"]), "audit.domain"),
        (lambda: mlp(TASK, width=2.5), "model.width"),
        (lambda: two_layer(TASK, bias=math.nan), "model.bias"),
        (lambda: synthetic(shape="abc"), "data.shape"),
        (lambda: text(tone=math.nan), "data.tone"),
        (lambda: tiny(side=True), "data.side"),
    ],
)
def test_parts_refuse_what_is_no_number_or_choice(make, key: str) -> None:
    with pytest.raises(FedsimError, match=rf"^{re.escape(key)}: expected .*, got "):
        make()


def test_an_endless_amplification_and_an_endless_round_are_legal() -> None:
    assert ILRG(max_amplification=math.inf).max_amplification == math.inf
    assert Federation(timeout=math.inf).timeout == math.inf
