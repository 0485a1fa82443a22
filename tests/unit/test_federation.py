import pytest

from fedsim.core.errors import FedsimError
from fedsim.core.federation import Federation


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("clients", 0),
        ("rounds", 1.5),
        ("rounds", True),
        ("participation", 0.0),
        ("participation", 1.1),
        ("batch_size", -1),
        ("mode", "fedprox"),
        ("local_lr", 0.0),
        ("local_lr", "abc"),
        ("local_lr", float("nan")),
        ("local_lr", float("inf")),
        ("alpha", float("inf")),
        ("server_lr", float("inf")),
        ("timeout", float("nan")),
        ("attacked_rounds", [True]),
        ("attacked_clients", [1.0]),
        ("disclose", [["loss"]]),
        ("partition", ["iid"]),
        ("attacked_rounds", 1),
        ("disclose", "loss"),
        ("server_lr", -1.0),
        ("partition", "sorted"),
        ("sampling", "twice"),
        ("labels", "many"),
        ("disclose", ["everything"]),
        ("attacked_rounds", [0]),
        ("attacked_clients", [4]),
        ("local_steps", 2),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(key: str, value: object) -> None:
    with pytest.raises(FedsimError, match=rf"federation\.{key}.*{str(value)[:4]}".replace("[", r"\[")):
        Federation(**{key: value})  # type: ignore[arg-type]


def test_participants_are_a_seeded_sample_of_the_asked_size() -> None:
    rules = Federation(clients=10, participation=0.3)
    assert rules.participants(0, 1) == rules.participants(0, 1)
    assert len(rules.participants(0, 1)) == 3
    assert len({tuple(rules.participants(0, round)) for round in range(20)}) > 5
    assert Federation(clients=10, participation=0.001).participants(0, 1)  # never nobody


def test_attacked_rounds_and_clients() -> None:
    rules = Federation(clients=3, rounds=3, attacked_rounds=[2], attacked_clients=[0, 2])
    chosen = [(r, c) for r in (1, 2, 3) for c in range(3) if rules.attacks(r, c)]
    assert chosen == [(2, 0), (2, 2)]
    assert Federation().attacks(1, 3)


def test_the_server_steps_down_gradients_and_along_updates() -> None:
    assert Federation().server_step == -0.1
    assert Federation(mode="fedavg").server_step == 1.0
    assert Federation(server_lr=0.5).server_step == -0.5
