"""The recursive attack's equations against torch's own layers, and what it refuses."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import fedsim
from fedsim.attacks.privacy.matching.rgap import (
    RGAP,
    Layer,
    LayerSystem,
    chain,
    roughness,
    scatter,
    source_indices,
    undo,
)
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.types import Task
from fedsim.models.layers import Normalize

TASK = Task(input_shape=(2, 5, 6), num_classes=3, mean=(0.5, 0.5), std=(0.5, 0.5))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "recursion"), dtype=torch.float64)


def convolution(**settings: object) -> tuple[Layer, Tensor, Tensor]:
    torch.manual_seed(0)
    module = nn.Conv2d(2, 3, (3, 2), **settings).double()
    inputs = drawn(1, 2, 5, 6)
    outputs = module(inputs)
    layer = Layer(
        name="conv",
        module=module,
        activation=nn.Tanh(),
        in_shape=(2, 5, 6),
        out_shape=tuple(outputs.shape[1:]),
    )
    return layer, inputs, outputs


@pytest.mark.parametrize(
    "settings", [{}, {"stride": 2, "padding": 1}, {"dilation": (1, 2), "padding": (2, 0)}]
)
def test_a_convolution_is_the_matrix_that_is_written_down(settings: dict[str, object]) -> None:
    layer, inputs, outputs = convolution(**settings)
    weight, bias = layer.module.weight, layer.module.bias
    error = drawn(*outputs.shape, seed=1)
    (slope,) = torch.autograd.grad((outputs * error).sum(), weight)
    sources = source_indices(layer)
    forward = scatter(sources.T, weight.detach().flatten(1)[:, None, :], layer)
    assert torch.allclose(forward @ inputs.flatten(), (outputs - bias.view(1, -1, 1, 1)).detach().flatten())
    backward = scatter(sources, error.view(3, 1, -1), layer)
    assert torch.allclose(backward @ inputs.flatten(), slope.flatten())


@pytest.mark.parametrize(
    "settings", [{"groups": 2}, {"padding": "same"}, {"padding_mode": "circular", "padding": 1}]
)
def test_unusual_convolutions_are_refused(settings: dict[str, object]) -> None:
    module = nn.Conv2d(2, 4, 3, **settings)
    layer = Layer(name="conv", module=module, activation=None, in_shape=(2, 5, 6), out_shape=(4, 3, 4))
    with pytest.raises(FedsimError, match="grouped or padded in an unusual way"):
        source_indices(layer)


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Tanh(), nn.LeakyReLU(0.2), nn.ReLU()])
def test_activations_are_undone_with_their_slopes(activation: nn.Module) -> None:
    inputs = drawn(30).requires_grad_()
    values = activation(inputs)
    (slopes,) = torch.autograd.grad(values.sum(), inputs)
    found, found_slopes = undo(activation, values.detach())
    known = slopes > 0
    assert torch.allclose(found_slopes, slopes)
    assert torch.allclose(found[known], inputs.detach()[known])
    assert not found[~known].any()


def test_what_is_rounding_beside_the_others_is_no_active_unit() -> None:
    found, slopes = undo(nn.ReLU(), torch.tensor([2.0, 1e-9, 0.0, 1e-3], dtype=torch.float64))
    assert slopes.tolist() == [1, 0, 0, 1]
    assert found.tolist() == [2.0, 0.0, 0.0, 1e-3]


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Tanh()])
def test_saturated_units_stay_finite(activation: nn.Module) -> None:
    found, slopes = undo(activation, torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64))
    assert bool(found.isfinite().all())
    assert float(found.abs().max()) > 9
    assert float(slopes[2]) < 1e-8


def test_roughness_is_the_sum_of_squared_differences() -> None:
    image = drawn(2, 3, 4)
    flat = image.flatten()
    across, down = image[..., 1:] - image[..., :-1], image[:, 1:] - image[:, :-1]
    assert float(flat @ roughness((2, 3, 4)) @ flat) == pytest.approx(
        float(across.square().sum() + down.square().sum())
    )


@pytest.mark.parametrize("linear", [False, True])
def test_the_true_input_solves_a_layers_equations(linear: bool) -> None:
    layer, inputs, outputs = convolution(padding=1)
    if linear:
        module = nn.Linear(60, 70).double()
        outputs = module(inputs.flatten(1))
        layer = dataclasses.replace(layer, module=module, in_shape=(60,), out_shape=(70,))
    error = drawn(*outputs.shape, seed=1)
    values = outputs.tanh()
    (slope,) = torch.autograd.grad((values * error).sum(), layer.module.weight, retain_graph=True)
    sent = {"conv.weight": layer.module.weight.detach(), "conv.bias": layer.module.bias.detach()}
    system = LayerSystem.of(layer, sent, {"conv.weight": slope}, values.detach().flatten(), error.flatten())
    truth = inputs.flatten()
    assert torch.allclose(system.forward @ truth, system.wanted)
    assert torch.allclose(system.backward @ truth, system.gradient)
    assert torch.allclose(system.error, (error * (1 - values.square())).detach().flatten())
    assert float(system.certainty.max()) == 1
    assert torch.allclose(
        system.certainty, ((1 - values.square()) / (1 - values.square()).max()).detach().flatten()
    )
    endless = truth.new_full((1,), torch.inf)
    found, miss = system.solve(lowest=-endless, highest=endless, quiet=None)
    assert torch.allclose(found, truth, atol=1e-5)
    assert miss < 1e-6
    bare = LayerSystem.of(
        layer,
        {"conv.weight": sent["conv.weight"]},
        {"conv.weight": slope},
        values.detach().flatten(),
        error.flatten(),
    )
    assert torch.allclose(bare.wanted, outputs.detach().flatten())  # without a bias


def test_bounds_and_silent_units_help_where_equations_are_too_few() -> None:
    """One equation, x + y = 1: the smallest, what is inside the bounds, or what keeps a unit silent."""
    layer = Layer(name="l", module=nn.Linear(2, 2), activation=nn.ReLU(), in_shape=(2,), out_shape=(2,))
    system = LayerSystem(
        layer=layer,
        forward=torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64),
        wanted=torch.tensor([1.0, 0.2], dtype=torch.float64),
        certainty=torch.tensor([1.0, 0.0], dtype=torch.float64),
        error=torch.zeros(2, dtype=torch.float64),
        backward=torch.zeros(1, 2, dtype=torch.float64),
        gradient=torch.zeros(1, dtype=torch.float64),
    )
    low, high = (torch.tensor([bound], dtype=torch.float64) for bound in (-10.0, 10.0))
    found, miss = system.solve(lowest=low, highest=high, quiet=None)
    assert found.tolist() == pytest.approx([0.8, 0.2], abs=0.01)  # the silent unit says y <= .2
    assert miss < 0.01
    loud = dataclasses.replace(layer, activation=nn.Tanh())
    found, _ = dataclasses.replace(system, layer=loud).solve(lowest=low, highest=high, quiet=None)
    assert found.tolist() == pytest.approx([0.5, 0.5], abs=0.01)  # the smallest
    found, _ = dataclasses.replace(system, layer=loud).solve(lowest=low, highest=high / 100, quiet=None)
    assert float(found.max()) < 0.4  # bounds of .1, against the equation
    steep = torch.diag(torch.tensor([1e-3, 3e-3], dtype=torch.float64))
    found, _ = dataclasses.replace(system, layer=loud).solve(lowest=low, highest=high, quiet=steep)
    assert found.tolist() == pytest.approx([0.75, 0.25], abs=0.01)


def plain(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(Normalize(TASK), nn.Flatten(), *layers).eval()


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((nn.Linear(60, 4), nn.GELU(), nn.Linear(4, 3)), "cannot undo layer '3' .GELU."),
        ((nn.Linear(60, 4), nn.Linear(4, 3)), "no plain chain"),
        ((nn.Linear(60, 3), nn.Tanh()), "no plain chain"),
        ((nn.Linear(60, 3, bias=False),), "has no bias"),
    ],
)
def test_other_models_than_chains_are_refused(layers: tuple[nn.Module, ...], words: str) -> None:
    with pytest.raises(FedsimError, match=words):
        chain(plain(*layers), TASK)


def test_a_chain_is_its_layers_with_their_activations() -> None:
    found = chain(plain(nn.Linear(60, 8), nn.Dropout(), nn.Tanh(), nn.Linear(8, 3)), TASK)
    assert [layer.name for layer in found] == ["2", "5"]
    assert isinstance(found[0].activation, nn.Tanh)
    assert (found[0].in_shape, found[0].out_shape, found[1].activation) == ((60,), (8,), None)


@pytest.mark.parametrize("rate", [None, 0.25])
def test_one_image_comes_back_with_its_label(rate: float | None) -> None:
    model = plain(nn.Linear(60, 90), nn.Sigmoid(), nn.Linear(90, 3))
    images, label = torch.rand(1, 2, 5, 6, generator=generator(2)), torch.tensor([2])
    seen = fedsim.observe(model, images, label)
    if rate is not None:
        update = {name: -rate * tensor for name, tensor in seen.received.items()}
        seen = dataclasses.replace(seen, received=update, kind="update", learning_rate=rate, local_steps=1)
    found = RGAP().run(model, TASK, [seen])
    assert float((found.images - images).abs().max()) < 1e-3
    assert (found.labels.tolist(), found.class_counts.tolist()) == ([2], [0, 0, 1])
    assert found.residual < 1e-3


def test_what_is_no_gradient_of_one_image_is_refused() -> None:
    model = plain(nn.Linear(60, 8), nn.Tanh(), nn.Linear(8, 3))
    images = torch.rand(2, 2, 5, 6, generator=generator(3))
    two = fedsim.observe(model, images, torch.tensor([0, 1]))
    with pytest.raises(FedsimError, match="expected a batch of one, got 2"):
        RGAP().run(model, TASK, [two])
    with pytest.raises(FedsimError, match="of more than one example"):
        RGAP().run(model, TASK, [dataclasses.replace(two, num_examples=None)])
    small = {name: 1e-3 * tensor for name, tensor in two.received.items()}  # it is no matter of size
    with pytest.raises(FedsimError, match="of more than one example"):
        RGAP().run(model, TASK, [dataclasses.replace(two, num_examples=None, received=small)])
    one = fedsim.observe(model, images[:1], torch.tensor([0]))
    large = {name: 1e4 * tensor for name, tensor in one.received.items()}
    assert RGAP().run(model, TASK, [dataclasses.replace(one, received=large)]).labels.tolist() == [0]
    steps = dataclasses.replace(one, kind="update", learning_rate=0.1, local_steps=2)
    with pytest.raises(FedsimError, match="expected one local step, got 2"):
        RGAP().run(model, TASK, [steps])
    silent = dict(one.received) | {"4.bias": torch.zeros(3)}
    with pytest.raises(FedsimError, match="nothing to divide by"):
        RGAP().run(model, TASK, [dataclasses.replace(one, received=silent)])


def test_where_equations_are_too_few_the_smoothest_image_is_taken() -> None:
    torch.manual_seed(2)
    layers = (nn.Conv2d(2, 1, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(4, 3))
    model = nn.Sequential(Normalize(TASK), *layers).eval()
    down, across = torch.meshgrid(torch.arange(5) / 5, torch.arange(6) / 6, indexing="ij")
    images = torch.stack([0.2 + 0.6 * across, 0.9 - 0.5 * down])[None]
    found = RGAP().run(model, TASK, [fedsim.observe(model, images, torch.tensor([1]))])
    assert float((found.images - images).square().mean()) < 0.005  # the smallest one: .014
