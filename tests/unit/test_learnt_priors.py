"""Priors learnt from public pictures, and pictures from known features."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.matching.known_features import known_features
from fedsim.attacks.privacy.matching.labels import Given, Joint
from fedsim.attacks.privacy.matching.learnt import Learnt
from fedsim.attacks.privacy.matching.matching import Matching
from fedsim.attacks.privacy.matching.objectives import Euclidean
from fedsim.attacks.privacy.matching.optimisers import Adam
from fedsim.attacks.privacy.matching.starts import Normal
from fedsim.attacks.privacy.matching.watch import Watch
from fedsim.config.checks import check_public_images
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.training import batch_gradient
from fedsim.core.types import Observation, Reconstruction, Task, Truth
from fedsim.data.public import fingerprints
from fedsim.data.synthetic import synthetic
from fedsim.lab.prior_training import train_prior, varied, write_prior
from fedsim.lab.scoring import prior_alone_scores
from fedsim.metrics.image_matching import peak_signal_to_noise
from fedsim.metrics.psnr import PSNR
from fedsim.models.denoiser import Denoiser
from fedsim.models.learnt_prior import digest, read_prior

TASK = Task(input_shape=(1, 8, 8), num_classes=4, mean=(0.3,), std=(0.4,))
DATA = synthetic(shape=(1, 8, 8), num_classes=4, train_size=60, test_size=40)


@pytest.fixture(scope="module")
def learnt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = DATA.test.batch(torch.arange(40))
    network, denoised = train_prior(images, width=4, steps=12, batch_size=8, seed=1)
    assert denoised["1.0"] > 5  # noise of 1 alone would leave 0
    path = tmp_path_factory.mktemp("priors") / "made" / "prior.safetensors"
    write_prior(path, network, images, denoised, data="synthetic", split="test", seed=1, steps=12)
    return path


def test_a_prior_is_read_as_it_was_written(learnt_file: Path) -> None:
    images, prior = DATA.test.batch(torch.arange(40)), read_prior(str(learnt_file))
    assert prior.notes["digest"] == digest(images)
    assert prior.name == f"40 test images of synthetic, digest {digest(images)[:12]}"
    assert torch.equal(prior.fingerprints, fingerprints(images))
    again, _ = train_prior(images, width=4, steps=12, batch_size=8, seed=1)
    noisy, level = images[:3] + 0.1, torch.full((3,), 0.1)
    assert torch.allclose(prior.network(noisy, level), again(noisy, level), atol=2e-3)  # half precision
    assert not any(parameter.requires_grad for parameter in prior.network.parameters())
    with pytest.raises(FedsimError, match="is there already"):
        write_prior(learnt_file, again, images, {})


def test_what_is_no_prior_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedsimError, match=r"no such file.*fedsim prior train"):
        read_prior(str(tmp_path / "none.safetensors"))
    (tmp_path / "torn.safetensors").write_bytes(b"{}")
    with pytest.raises(FedsimError, match=r"no prior.*fedsim prior train"):
        read_prior(str(tmp_path / "torn.safetensors"))


def test_clients_who_own_a_priors_images_refuse_it(learnt_file: Path) -> None:
    attack = matching(priors=[Learnt(file=str(learnt_file))])
    check_public_images(attack, DATA.train)
    with pytest.raises(FedsimError, match=r"attack\.priors: .* 40 of the 40 public images are in it"):
        check_public_images(attack, DATA.test)


@pytest.mark.parametrize("side", [8, 11])
def test_a_denoiser_keeps_the_form_and_leaves_clean_images(side: int) -> None:
    torch.manual_seed(0)
    network, images = Denoiser(3, 4), torch.rand(2, 3, side, side)
    found = network(images, torch.tensor([1e-4, 1e-4]))
    assert found.shape == images.shape
    assert torch.allclose(found, images, atol=1e-3)
    assert float((network(images, torch.tensor([50.0, 50.0])) - 0.5).abs().max()) < 0.1  # noise tells nothing


def test_varied_images_stay_images_of_their_form() -> None:
    images = DATA.test.batch(torch.arange(5))
    found = varied(images, generator(0))
    assert found.shape == images.shape
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    assert not torch.equal(found, images)


def test_the_residual_and_its_slope(learnt_file: Path) -> None:
    prior = Learnt(weight=0.7, file=str(learnt_file), noise=0.4, least_noise=0.1, seed=3)
    images = torch.randn(2, 3, 1, 8, 8, generator=generator(1))
    value, output, slope = prior.on(nn.Linear(1, 1), TASK)(images, 0.5)
    pixels = (images * 0.4 + 0.3).flatten(0, 1)
    noise = 0.2 * torch.randn(pixels.shape, generator=generator(3, "learnt prior"))
    gap = pixels - prior.learnt.network(pixels + noise, torch.full((6,), 0.2))
    assert output is images
    assert value == pytest.approx(0.7 * float(gap.square().mean()), rel=1e-4)
    assert torch.allclose(slope.flatten(0, 1), 2 * 0.7 * 0.4 * gap / gap.numel(), atol=1e-7)
    colours = Task(input_shape=(3, 8, 8), num_classes=4)
    with pytest.raises(FedsimError, match="learnt from images of 1 channels"):
        prior.on(nn.Linear(1, 1), colours)


def test_the_mean_of_the_last_iterations_is_the_result() -> None:
    seen = list[Tensor]()

    def slopes(variables: list[Tensor], done: float = 1.0) -> tuple[float, list[Tensor]]:
        seen.append(variables[0].detach().clone())
        return float(variables[0].square().sum()), [2 * variables[0].detach()]

    problem = SimpleNamespace(
        value_and_slopes=slopes, parametrisation=SimpleNamespace(keep_inside=lambda point: point)
    )
    watch = Watch(float("inf"), lambda done, note: None)
    Adam(iterations=8, step=0.5, sign="none", averaged=0.5).minimise(problem, [torch.ones(2)], watch)
    last = [*seen[5:8], problem_end(seen[:8])]
    assert torch.allclose(seen[-1], torch.stack(last).mean(dim=0), atol=1e-6)
    assert torch.equal(watch.best[0], seen[-1])


def problem_end(seen: list[Tensor]) -> Tensor:
    """Return where plain Adam stands after the last of these."""
    point = torch.ones(2, requires_grad=True)
    optimiser = torch.optim.Adam([point], lr=0.5)
    for iteration in range(len(seen)):
        factor = 0.1 ** sum(iteration / len(seen) >= share for share in (3 / 8, 5 / 8, 7 / 8))
        optimiser.param_groups[0]["lr"] = 0.5 * factor
        point.grad = 2 * point.detach()
        optimiser.step()
    return point.detach()


class Shown(Attack):
    """Tells what it was given."""

    def __init__(self, guess: Reconstruction) -> None:
        self.guess = guess

    def run(self, *given: object) -> Reconstruction:
        """Tell it."""
        return self.guess


def matching(**parts: object) -> Matching:
    usual: dict[str, object] = {
        "objective": Euclidean(weighting="layer"),
        "labels": Given(),
        "start": Normal(deviation=0.5),
        "optimiser": Adam(iterations=60, step=0.2, sign="none", decay="cosine", averaged=0.3),
    }
    return Matching(**(usual | parts))  # type: ignore[arg-type]


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    scaled = SimpleNamespace(mean=0.3, std=0.4)

    class Normalise(nn.Module):
        """As the task says."""

        def forward(self, images: Tensor) -> Tensor:
            """Normalise."""
            return (images - scaled.mean) / scaled.std

    layers = [Normalise(), nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(216, 40), nn.ReLU(), nn.Linear(40, 4)).eval()


def seen_of(model: nn.Module, number: int) -> tuple[Tensor, Tensor, Observation, Reconstruction]:
    images, labels = DATA.train.batch(torch.arange(number)), DATA.train.labels[:number]
    seen = Observation(
        round=1,
        client=0,
        sent={name: parameter.detach().clone() for name, parameter in model.named_parameters()},
        received=batch_gradient(model, images, labels)[0],
        kind="gradient",
        num_examples=number,
        class_counts=labels.bincount(minlength=4).tolist(),
    )
    with torch.no_grad():
        features = model[:4](images)
    shown = Reconstruction(embeddings=features, embedding_layer="4", labels=labels)
    return images, labels, seen, shown


@pytest.mark.parametrize("known", [3, 2])
def test_known_features_give_the_convolutions_gradient_without_the_head(known: int) -> None:
    model = convolutions()
    images, labels, seen, shown = seen_of(model, 3)
    part = Reconstruction(
        embeddings=shown.embeddings[:known], embedding_layer="4", labels=shown.labels[:known]
    )
    terms = known_features(model, TASK, part, 3, 2.0)
    assert list(terms.behind) == [False, False, True, True, True, True]
    loss = terms.loss(model(images), labels)
    found = torch.autograd.grad(loss, [model[1].weight, model[1].bias])
    for mine, name in zip(found, ("1.weight", "1.bias"), strict=True):
        assert torch.allclose(mine, seen.received[name], atol=1e-6)
    assert terms.penalty(images[None])[0] == pytest.approx(0, abs=1e-9)
    other = images.flip(3)
    model(other)
    gaps = (model[:4](other[:known]) - shown.embeddings[:known]).square().sum(1)
    wanted = 2 * (gaps / shown.embeddings[:known].square().sum(1)).mean()
    assert terms.penalty(other[None])[0] == pytest.approx(float(wanted), rel=1e-5)


def test_pictures_follow_from_features_with_the_prior_alone_beside_them(learnt_file: Path) -> None:
    model = convolutions()
    images, labels, seen, shown = seen_of(model, 3)
    prior = Learnt(weight=0.1, file=str(learnt_file), noise=0.2)
    attack = matching(features=Shown(shown), priors=[prior], candidates=2, ensemble=True)
    assert attack.prior == prior.learnt.name
    guess = attack.run(model, TASK, [seen])
    quality = peak_signal_to_noise(guess.images, images)  # in the features' order
    alone = peak_signal_to_noise(guess.prior_alone, images)
    assert float(quality.min()) > float(alone.max()) + 3
    assert guess.class_counts is None  # labels were given
    truth = Truth(round=1, client=0, images=images, labels=labels)
    (score,) = prior_alone_scores([PSNR()], guess, truth)
    assert score.metric == "psnr_prior_alone"
    assert score.value < float(quality.mean()) - 3
    without = matching(features=Shown(shown)).run(model, TASK, [seen])
    assert without.prior_alone is None
    assert prior_alone_scores([PSNR()], without, truth) == []


def test_features_want_labels_that_stay_and_a_layer_of_the_model() -> None:
    model = convolutions()
    *_, shown = seen_of(model, 3)
    with pytest.raises(FedsimError, match="not Joint"):
        matching(features=Shown(shown), labels=Joint())
    elsewhere = Reconstruction(embeddings=shown.embeddings, embedding_layer="head", labels=shown.labels)
    with pytest.raises(FedsimError, match="of a layer of the model"):
        known_features(model, TASK, elsewhere, 3, 1.0)
    assert known_features(model, TASK, Reconstruction(labels=shown.labels), 3, 1.0) is None
