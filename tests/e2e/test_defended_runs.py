"""Defenses inside Flower rounds: order, bytes, epsilon, and what happens when one breaks the reply."""

import math

import pytest
import torch

from fedsim.core.errors import FedsimError
from fedsim.core.gaussian_privacy import epsilon_of
from fedsim.core.interfaces import Attack, Defense
from fedsim.defenses.privacy.dp import DP
from fedsim.defenses.privacy.sparsify import sparsify
from fedsim.storage.runfolder import RunFolder


def metrics(folder: RunFolder) -> dict[str, float]:
    return folder.summary()["metrics"]


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_private_run_says_its_epsilon(play_small) -> None:
    strong = play_small("defense=[dp]", "defense.dp.sigma=4", folder="strong")
    weak = play_small("defense=[dp]", "defense.dp.sigma=0.5", folder="weak")
    assert 0 < metrics(strong)["epsilon"] < metrics(weak)["epsilon"]
    assert not {"epsilon", "client_epsilon"} & set(metrics(play_small("defense=[noise]", folder="noise")))
    clients = metrics(play_small("defense=[clip,noise]", "defense.noise.sigma=4", folder="clients"))
    assert clients["client_epsilon"] == pytest.approx(epsilon_of(2 * math.sqrt(2) / 4, 1e-5))  # two rounds


@pytest.mark.slow
def test_epsilon_is_what_the_sampling_allows(play_small) -> None:
    private = ("defense=[dp]", "defense.dp.sigma=2", "federation.batch_size=16", "federation.rounds=2")
    found = {
        how: metrics(play_small(*private, f"federation.sampling={how}", folder=how))
        for how in ("poisson", "without_replacement", "with_replacement")
    }
    epsilon, fewest = DP(sigma=2).epsilon, 160 // 3  # images of a client
    amplified = epsilon(sample_rate=16 / fewest, steps=2)
    once_an_epoch = epsilon(sample_rate=1.0, steps=1, replaced=True)  # three batches are one
    assert found["poisson"]["epsilon"] == pytest.approx(amplified, rel=1e-6)
    assert found["without_replacement"]["epsilon"] == pytest.approx(once_an_epoch, rel=1e-6)
    assert once_an_epoch > amplified
    assert "epsilon" not in found["with_replacement"]


@pytest.mark.parametrize("mode", ["fedsgd", pytest.param("fedavg", marks=pytest.mark.slow)])
def test_local_defenses_act_at_every_step(play_small, mode: str) -> None:
    plain = play_small(f"federation={mode}", folder="plain")
    private = play_small(f"federation={mode}", "defense=[dp]", folder="private")
    mixed = play_small(f"federation={mode}", "defense=[mixup]", folder="mixed")
    replies = [next(folder.observations()).received for folder in (plain, private, mixed)]
    for reply in replies[1:]:
        assert any(not torch.equal(reply[name], replies[0][name]) for name in reply)
    assert torch.equal(plain.truth(1, 0).images, mixed.truth(1, 0).images)  # the truth is what was private


def test_a_defense_that_changes_the_form_fails_closed(play_small, monkeypatch) -> None:
    from fedsim.defenses.privacy.noise import Noise

    monkeypatch.setattr(Noise, "on_reply", lambda self, reply, kind, random: dict(list(reply.items())[1:]))
    with pytest.raises(Exception, match=r"a defense changed the form of the reply: missing tensor"):
        play_small("defense=[noise]")


def test_hooks_do_nothing_by_default() -> None:
    reply = {"w": torch.ones(2)}
    assert Defense().on_reply(reply, "gradient", torch.Generator()) is reply
    assert Defense().bits is None


def test_under_secure_aggregation_the_server_sees_a_round_s_mean(play_small) -> None:
    each = play_small("federation.partition=dirichlet", folder="each")
    summed = play_small("federation.partition=dirichlet", "defense=[secure_aggregation]", folder="summed")
    first = [seen for seen in each.observations() if seen.round == 1]
    (seen,) = (seen for seen in summed.observations() if seen.round == 1)
    assert (seen.client, list(seen.clients)) == (-1, [one.client for one in first])
    assert seen.num_examples == sum(one.num_examples for one in first)
    for name, tensor in seen.received.items():
        mean = sum(one.received[name] * one.num_examples for one in first) / seen.num_examples
        assert torch.allclose(tensor, mean, atol=1e-7)
    truth = summed.truth(1, -1)
    assert torch.equal(truth.labels, torch.cat([each.truth(1, one.client).labels for one in first]))
    assert {row.client for row in summed.scores()} == {-1}
    assert metrics(summed)["accuracy"] == metrics(each)["accuracy"]  # what is learnt does not change
    assert metrics(summed)["bytes"] == metrics(each)["bytes"]
    assert "only the exact sum" in (summed.path / "report.html").read_text()
    with pytest.raises(FedsimError, match=r"a sum over one client hides nothing.*Remedy"):
        play_small("defense=[secure_aggregation]", "federation.clients=1", folder="alone")
    with pytest.raises(FedsimError, match=r"attacked_clients: under secure_aggregation.*Remedy"):
        play_small("defense=[secure_aggregation]", "federation.attacked_clients=[0]", folder="refused")


def test_what_was_left_out_comes_with_the_next_reply(play_small) -> None:
    still = ("federation.server_lr=1e-30", "federation.rounds=3")  # the same weights in every round
    plain = [seen for seen in play_small(*still, folder="plain").observations() if seen.client == 0]
    settings = ("defense.sparsify.rate=0.7", "defense.sparsify.error_feedback=true")
    thin = play_small(*still, "defense=[sparsify]", *settings, folder="thin")
    rest = {name: torch.zeros_like(tensor) for name, tensor in plain[0].received.items()}
    for whole, sent in zip(plain, (seen for seen in thin.observations() if seen.client == 0), strict=True):
        for name, tensor in whole.received.items():
            expected = sparsify(tensor + rest[name], 0.7)
            assert torch.equal(sent.received[name], expected)
            rest[name] = tensor + rest[name] - expected


def test_local_steps_are_federated_averaging(play_small) -> None:
    rules = ("federation.local_steps=3", "federation.local_lr=0.02")
    averaging = play_small("federation=fedavg", *rules, folder="averaging")
    steps = ("defense.local_steps.steps=3", "defense.local_steps.learning_rate=0.02")
    defended = play_small("federation=fedsgd", "defense=[local_steps]", *steps, folder="defended")
    for one, other in zip(averaging.observations(), defended.observations(), strict=True):
        assert one.kind == other.kind == "update"
        assert all(torch.equal(one.received[name], other.received[name]) for name in one.received)
    assert "after 3 local steps" in (defended.path / "report.html").read_text()


KNOWS = "threat.knows_defense=true"


class Curious(Attack):
    def run(self, model, task, observations):
        raise FedsimError(f"told: {observations[-1].defense}")


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (["defense=[noise]"], "None"),
        (
            ["threat.knows_defense=true", "defense=[noise,sparsify]"],
            "noise=0.01, relative_noise=0.0, zeros=True",
        ),
        (
            ["threat.knows_defense=true", "defense=[noise]", "defense.noise.relative=true"],
            "relative_noise=0.01",
        ),
        ([KNOWS, "defense=[dp]"], "noise=0.125"),  # 1 / 8
        (
            [KNOWS, "defense=[dp]", "federation=fedavg", "federation.local_steps=4"],
            "noise=0.0125",
        ),  # .05 / 8 * 2
        ([KNOWS, "defense=[noise,clip]"], "noise=0.0,"),  # what clipping leaves of it, nobody knows
        (
            ["threat.knows_defense=true", "defense=[noise,secure_aggregation]"],
            "noise=0.0057",
        ),  # 0.01 / sqrt(3)
    ],
)
def test_attackers_know_of_defenses_what_the_threat_model_says(play_small, monkeypatch, choice, told) -> None:
    from fedsim.attacks.privacy.labels.ilrg import ILRG

    monkeypatch.setattr(ILRG, "run", Curious().run)
    with pytest.raises(FedsimError, match=f"told: .*{told}"):
        play_small(*choice, "federation.batch_size=8")


@pytest.mark.slow
def test_the_time_to_a_target_is_reported(play_small) -> None:
    folder = play_small("federation.target_accuracy=0.5", folder="soon")
    first = next(result for result in folder.history() if result.accuracy >= 0.5)
    assert metrics(folder)["rounds_to_target"] == first.round == 1
    assert metrics(folder)["seconds_to_target"] == first.seconds > 0
    assert "rounds_to_target" not in metrics(play_small("federation.target_accuracy=1.0", folder="never"))
