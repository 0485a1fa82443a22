"""Searches arrive: optimisers on a bowl, against torch's own, and single images to the last digits."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import fedsim
from fedsim.attacks.privacy.matching.labels import Joint
from fedsim.attacks.privacy.matching.matching import Matching
from fedsim.attacks.privacy.matching.objectives import Euclidean
from fedsim.attacks.privacy.matching.optimisers import LBFGS, Adam, Optimiser
from fedsim.attacks.privacy.matching.rgap import RGAP
from fedsim.attacks.privacy.matching.starts import Normal, Patterned
from fedsim.attacks.privacy.matching.watch import Watch
from fedsim.core.randomness import generator
from fedsim.testing import small_data, small_model

BOTTOM = torch.tensor([3.0, -2.0, 0.5], dtype=torch.float64)
STEEP = torch.tensor([1.0, 4.0, 0.2], dtype=torch.float64)


class Bowl:
    """A problem whose answer is BOTTOM."""

    def __init__(self) -> None:
        self.parametrisation = SimpleNamespace(keep_inside=lambda point: point.clamp_(-2.5, 2.5))

    def value_and_slopes(self, variables: list[Tensor], done: float = 1.0) -> tuple[float, list[Tensor]]:
        gap = variables[0].detach() - BOTTOM
        return float((STEEP * gap.square()).sum()), [2 * STEEP * gap]


def descend(optimiser: Optimiser) -> tuple[Tensor, Watch]:
    point, watch = torch.zeros(3, dtype=torch.float64), Watch(float("inf"), lambda done, note: None)
    optimiser.minimise(Bowl(), [point], watch)
    return point, watch


@pytest.mark.parametrize(
    "optimiser",
    [
        LBFGS(iterations=30),
        Adam(iterations=400, step=0.1, sign="none", decay="cosine", warmup=10, box=False),
        Adam(iterations=400, step=0.1, sign="hard", decay="steps", box=False),
        Adam(iterations=400, step=0.1, sign="soft", decay="cosine", box=False),
    ],
)
def test_a_search_ends_at_the_bottom(optimiser: Optimiser) -> None:
    _, watch = descend(optimiser)
    assert torch.allclose(watch.best[0], BOTTOM, atol=0.02)
    assert watch.value == min(watch.trace) < 1e-3 * watch.trace[0]


def test_adam_takes_the_steps_of_torchs_own() -> None:
    point, watch = descend(Adam(iterations=25, step=0.05, sign="none", decay="none", box=False))
    twin = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.Adam([twin], lr=0.05)
    for _ in range(25):
        twin.grad = Bowl().value_and_slopes([twin])[1][0]
        theirs.step()
    assert torch.allclose(point, twin.detach(), atol=1e-9)
    assert len(watch.trace) == 26


def test_a_box_is_kept_and_a_sign_alone_decides() -> None:
    point, _ = descend(Adam(iterations=200, step=0.1, sign="hard", decay="none", box=True))
    assert float(point[0]) == 2.5
    one, _ = descend(Adam(iterations=1, step=0.1, sign="hard", decay="none", box=False))
    assert torch.allclose(one, 0.1 * BOTTOM.sign(), atol=1e-6)


def test_steps_shrink_as_it_is_said() -> None:
    stairs = Adam(iterations=8, decay="steps")
    found = [stairs._factor(done, 99) for done in (0.0, 0.375, 0.625, 0.875)]
    assert found == pytest.approx([1, 0.1, 0.01, 0.001])
    curve = Adam(iterations=8, decay="cosine", warmup=3)
    assert curve._factor(0.5, 99) == pytest.approx(0.5)
    assert [curve._factor(0.0, place) for place in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1, 1])


def test_a_pattern_is_one_tile_again_and_again() -> None:
    drawn = Patterned(tile=3, deviation=0.5).draw(40, small_data().task, generator(0))
    assert drawn.shape == (40, 1, 8, 8)
    assert torch.equal(drawn[:, :, :5], drawn[:, :, 3:])
    assert torch.equal(drawn[..., :5], drawn[..., 3:])
    assert not torch.equal(drawn[0], drawn[1])
    assert float(drawn[:, :, :3, :3].std()) == pytest.approx(0.5, rel=0.15)


def one_image() -> tuple[torch.nn.Module, fedsim.Observation, Tensor]:
    data, model = small_data(), small_model(activation="tanh")
    images, labels = data.train.batch(torch.arange(1)), data.train.labels[:1]
    return model, fedsim.observe(model, images, labels), images


def test_dlg_finds_an_image_and_its_label() -> None:
    model, seen, images = one_image()
    parts = {"objective": Euclidean(), "labels": Joint(), "start": Normal(deviation=0.1)}
    found = Matching(**parts, optimiser=LBFGS(iterations=150), double=True).run(
        model, small_data().task, [seen]
    )
    assert float((found.images - images).abs().max()) < 1e-3
    assert found.trace[-1] < 1e-6 * found.trace[0]
    assert found.class_counts.tolist() == [1, 0, 0, 0]


def test_recursion_finds_an_image_by_equations_alone() -> None:
    model, seen, images = one_image()
    found = RGAP().run(model, small_data().task, [seen])
    assert float((found.images - images).abs().max()) < 1e-2
