"""Defences inside Flower rounds: order, bytes, epsilon, and what happens when one breaks the reply."""

import pytest
import torch

from fedsim.interfaces import Defense
from fedsim.runfolder import RunFolder


def metrics(folder: RunFolder) -> dict[str, float]:
    return folder.summary()["metrics"]


def test_bytes_on_the_wire_are_counted(play_small) -> None:
    plain = play_small("model=mlp", "model.width=40", folder="plain")
    half = play_small(
        "model=mlp", "model.width=40", "defense=[quantize]", "defense.quantize.method=float16", folder="half"
    )
    thin = play_small(
        "model=mlp", "model.width=40", "defense=[sparsify]", "defense.sparsify.rate=0.99", folder="thin"
    )
    size = 4 * sum(p.numel() for p in next(plain.observations()).sent.values())
    assert metrics(plain)["bytes"] == size
    assert metrics(half)["bytes"] <= size / 2
    assert metrics(thin)["bytes"] < size / 20
    noisy = play_small("model=mlp", "model.width=40", "defense=[quantize,noise]", folder="noisy")
    assert metrics(noisy)["bytes"] == size  # noise undoes the rounding, and nothing is zero


def test_a_private_run_says_its_epsilon(play_small) -> None:
    strong = play_small("defense=[dp]", "defense.dp.sigma=4", folder="strong")
    weak = play_small("defense=[dp]", "defense.dp.sigma=0.5", folder="weak")
    assert 0 < metrics(strong)["epsilon"] < metrics(weak)["epsilon"]
    assert "epsilon" not in metrics(play_small("defense=[noise]", folder="noise"))


@pytest.mark.parametrize("mode", ["fedsgd", "fedavg"])
def test_local_defences_act_at_every_step(play_small, mode: str) -> None:
    plain = play_small(f"federation={mode}", folder="plain")
    private = play_small(f"federation={mode}", "defense=[dp]", folder="private")
    mixed = play_small(f"federation={mode}", "defense=[mixup]", folder="mixed")
    replies = [next(folder.observations()).received for folder in (plain, private, mixed)]
    for reply in replies[1:]:
        assert any(not torch.equal(reply[name], replies[0][name]) for name in reply)
    assert torch.equal(plain.truth(1, 0).images, mixed.truth(1, 0).images)  # the truth is what was private


def test_a_defence_that_changes_the_form_fails_closed(play_small, monkeypatch) -> None:
    from defenses.privacy.noise import Noise

    monkeypatch.setattr(Noise, "on_reply", lambda self, reply, kind, random: dict(list(reply.items())[1:]))
    with pytest.raises(Exception, match=r"a defence changed the form of the reply: missing tensor"):
        play_small("defense=[noise]")


def test_hooks_do_nothing_by_default() -> None:
    reply = {"w": torch.ones(2)}
    assert Defense().on_reply(reply, "gradient", torch.Generator()) is reply
    assert Defense().bits is None
