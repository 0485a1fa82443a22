"""The Stein attacks inside Flower rounds: crafted broadcasts, pictures, nesting, refusals."""

import pytest
import torch

from fedsim.core.errors import FedsimError

WIDE = ("model=two_layer", "model.width=200", "federation.rounds=2", "metric=[lnacc,psnr,image_error]")


def metric(folder, name: str) -> float:
    return float(folder.summary()["metrics"][name])


@pytest.mark.drawn
def test_every_round_sends_crafted_weights_and_gives_its_batches_away(play_small) -> None:
    folder = play_small(*WIDE, "attack=stein_exact")
    assert metric(folder, "psnr") > 100
    assert metric(folder, "image_error") < 1e-5
    assert metric(folder, "lnacc") == 1.0
    first, second = (next(seen for seen in folder.observations() if seen.round == round) for round in (1, 2))
    assert not torch.equal(first.sent["hidden1.weight"], second.sent["hidden1.weight"])
    assert len(first.sent["output.weight"].unique(dim=1)[0]) == 1
    page = (folder.path / "report.html").read_text()
    assert "own residual" in page
    assert (folder.path / "figures" / "pictures_1_0.svg").exists()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_images(play_small) -> None:
    one, two = (
        play_small(*WIDE, "attack=stein_exact", folder=str(place)).guess(2, 1).images for place in (1, 2)
    )
    assert torch.equal(one, two)


@pytest.mark.slow
def test_moments_start_a_search(play_small) -> None:
    folder = play_small(*WIDE, "attack=stein_matching", "federation.batch_size=3", "federation.clients=1")
    assert metric(folder, "psnr") > 80


def test_any_matching_attack_takes_it_as_a_start(play_small) -> None:
    nested = "attack.first={_target_: fedsim.attacks.privacy.stein.stein_exact.SteinExact}"
    folder = play_small(
        *WIDE,
        "attack=dlg",
        nested,
        "attack.optimiser.iterations=5",
        "attack.restarts=1",
        "federation.clients=1",
    )
    assert metric(folder, "psnr") > 40


def test_features_of_a_deeper_model_are_scored_against_true_ones(play_small) -> None:
    deep = (
        "model=mlp",
        "model.width=100",
        "model.activation=tanh",
        "metric=[lnacc,embedding_error,embedding_cosine]",
    )
    folder = play_small(*deep, "attack=stein_exact")
    assert metric(folder, "embedding_error") < 1e-4
    assert metric(folder, "embedding_cosine") > 0.9999


def test_a_square_network_ends_the_run_with_the_reason(play_small) -> None:
    with pytest.raises(FedsimError, match="span"):
        play_small(*WIDE, "attack=stein_exact", "model.activation=square")


def test_a_model_without_two_layers_is_refused(play_small) -> None:
    with pytest.raises(FedsimError, match=r"two linear layers.*model=two_layer"):
        play_small("attack=stein_exact", "model=softmax")
