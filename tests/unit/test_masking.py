"""Secure aggregation: masks cancel, shares bring masks back, and too few of them tell nothing."""

import pytest
import torch

from fedsim.core import masking
from fedsim.core.errors import FedsimError


def reply(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {"weight": torch.randn(4, 3, generator=random), "bias": torch.randn(4, generator=random)}


def test_whole_numbers_stand_for_what_they_were_made_of() -> None:
    sent = reply(0)
    back = masking.floating(masking.fixed(sent, 3.0, 20))
    for name, tensor in sent.items():
        assert float((back[name] - 3 * tensor.double()).abs().max()) <= 2.0**-masking.FRACTION
    with pytest.raises(FedsimError, match="expected at most"):
        masking.fixed({"weight": torch.tensor([1e9])}, 1.0, 20)


def test_masks_of_two_clients_cancel_and_their_own_do_not() -> None:
    keys = {client: masking.secret(0, "pair", 1, client) for client in (0, 1)}
    pair = [masking.agreed(keys[c], masking.public_key(keys[1 - c]), "mask 1") for c in (0, 1)]
    assert pair[0] == pair[1]
    plain = [masking.fixed(reply(client), 1.0, 2) for client in (0, 1)]
    own = [masking.secret(0, "mask", 1, client) for client in (0, 1)]
    hidden = [masking.masked(plain[c], own[c], {1 - c: pair[c]}, c) for c in (0, 1)]
    total = masking.added(hidden[0], hidden[1], 1)
    for mask in own:
        total = masking.added(total, masking.stream(mask, total), -1)
    expected = masking.added(plain[0], plain[1], 1)
    assert all(torch.equal(total[name], expected[name]) for name in expected)
    assert not any(torch.equal(hidden[0][name], plain[0][name]) for name in plain[0])


def test_enough_shares_give_a_secret_back_and_fewer_do_not() -> None:
    value = masking.secret(0, "mask", 1, 7)
    held = masking.shares(value, [0, 2, 5, 9, 11], 3, b"salt")
    for some in ([0, 2, 5], [2, 9, 11], [0, 5, 9, 11]):
        assert masking.joined({who: held[who] for who in some}, 3) == value
    with pytest.raises(FedsimError, match="too many clients left"):
        masking.joined({0: held[0], 2: held[2]}, 3)
    wrong = {0: held[0], 2: held[2], 5: held[9]}
    with pytest.raises(FedsimError, match="do not fit together"):
        masking.joined(wrong, 3)


def test_a_changed_share_is_noticed() -> None:
    content = masking.sealed(bytes(32), b"share", b"1 2 3")
    assert masking.opened(bytes(32), content, b"1 2 3") == b"share"
    with pytest.raises(FedsimError, match="changed on its way"):
        masking.opened(bytes(32), content, b"1 2 4")


@pytest.mark.parametrize(("number", "degree"), [(3, None), (20, None), (20, 4), (100, None), (5, 50)])
def test_neighbours_are_mutual_and_connected(number: int, degree: int | None) -> None:
    clients = [3 * place for place in range(number)]
    near = masking.neighbours(clients, degree, 0, 1)
    assert set(near) == set(clients)
    for who, others in near.items():
        assert who not in others
        assert all(who in near[other] for other in others)
        assert len(others) <= number - 1
    reached, waiting = {clients[0]}, [clients[0]]
    while waiting:
        fresh = set(near[waiting.pop()]) - reached
        reached |= fresh
        waiting += fresh
    assert len(reached) == number
