"""The defenses against slow truths, outside references, and properties."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Defense, LocalStep
from fedsim.core.randomness import generator
from fedsim.core.training import batch_gradient
from fedsim.core.types import Task
from fedsim.defenses.privacy.clip import Clip
from fedsim.defenses.privacy.dp import DP, clipped_sum
from fedsim.defenses.privacy.freeze import Freeze
from fedsim.defenses.privacy.mixup import Mixup
from fedsim.defenses.privacy.no_bias import NoBias
from fedsim.defenses.privacy.noise import Noise
from fedsim.defenses.privacy.quantize import Quantize, qsgd
from fedsim.defenses.privacy.soteria import Soteria, feature_slopes
from fedsim.defenses.privacy.sparsify import Sparsify
from fedsim.flower.wire import dense_bytes, wire_bytes
from fedsim.models.lenet5 import lenet5
from fedsim.models.mlp import mlp
from fedsim.models.resnet import resnet

TASK = Task(input_shape=(1, 8, 8), num_classes=4)


def step(model: nn.Module, number: int, seed: int = 0, shape: tuple[int, ...] = (1, 8, 8)) -> LocalStep:
    random = generator(seed, "step")
    images = torch.rand(number, *shape, generator=random)
    return LocalStep(model=model, images=images, labels=torch.randint(4, (number,), generator=random))


@given(number=st.integers(1, 7), bound=st.floats(0.01, 10), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_per_example_clipping_equals_a_loop_over_examples(number: int, bound: float, seed: int) -> None:
    torch.manual_seed(seed)
    now = step(mlp(TASK, width=10), number, seed)
    expected: dict[str, torch.Tensor] = {}
    for image, label in zip(now.images, now.labels, strict=True):
        one, _ = batch_gradient(now.model, image[None], label[None])
        norm = math.sqrt(sum(float(tensor.square().sum()) for tensor in one.values()))
        for name, tensor in one.items():
            expected[name] = expected.get(name, 0) + tensor * min(1.0, bound / norm)
    found = clipped_sum(now.model, now.images, now.labels, bound)
    assert all(torch.allclose(found[name], expected[name], atol=1e-5) for name in expected)


def test_private_noise_has_the_deviation_that_the_accountant_counts() -> None:
    now = step(mlp(TASK, width=200), 5)
    quiet = DP(max_norm=0.5, sigma=0.0).on_gradient({}, now, generator(1))
    loud = DP(max_norm=0.5, sigma=3.0).on_gradient({}, now, generator(1))
    gap = torch.cat([(loud[name] - quiet[name]).flatten() for name in quiet])
    assert float(gap.std()) == pytest.approx(3.0 * 0.5 / 5, rel=0.05)


def test_private_steps_divide_by_the_expected_size() -> None:
    now = step(mlp(TASK, width=10), 5)
    own, expected = (
        DP(sigma=0.0).on_gradient({}, dataclasses.replace(now, expected=size), generator(1))
        for size in (None, 10)
    )
    assert all(torch.allclose(own[name] / 2, expected[name]) for name in own)


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_epsilon_is_that_of_opacus(accountant: str) -> None:
    from opacus.accountants import create_accountant

    theirs = create_accountant(accountant)
    for _ in range(40):
        theirs.step(noise_multiplier=1.1, sample_rate=0.02)
    ours = DP(sigma=1.1, delta=1e-5, accountant=accountant).epsilon(sample_rate=0.02, steps=40)
    assert ours == pytest.approx(theirs.get_epsilon(delta=1e-5), rel=1e-6)
    halved = DP(sigma=2.2, delta=1e-5, accountant=accountant)
    assert halved.epsilon(sample_rate=0.02, steps=40, replaced=True) == ours
    assert DP(sigma=0.0).epsilon(sample_rate=0.02, steps=40) is None
    assert Noise().epsilon(sample_rate=0.02, steps=40) is None


def test_private_steps_refuse_statistics_of_the_batch() -> None:
    model = resnet(Task(input_shape=(3, 32, 32), num_classes=4), depth=18).train()
    with pytest.raises(FedsimError, match=r"BatchNorm.*batch_norm=eval"):
        DP().on_gradient({}, step(model, 2, shape=(3, 32, 32)), generator(0))


@given(levels=st.integers(1, 64), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_random_rounding_stays_on_its_levels_and_near_the_value(levels: int, seed: int) -> None:
    tensor = torch.randn(50, generator=generator(seed, "tensor"))
    rounded = qsgd(tensor, levels, generator(seed, "draw"))
    unit = float(tensor.norm()) / levels
    assert torch.allclose(rounded / unit, (rounded / unit).round(), atol=1e-3)
    assert float((rounded - tensor).abs().max()) <= unit * 1.001


def test_random_rounding_is_right_on_average() -> None:
    tensor = torch.tensor([0.3, -1.2, 0.05, 2.0])
    mean = sum(qsgd(tensor, 4, generator(draw)) for draw in range(3000)) / 3000
    assert torch.allclose(mean, tensor, atol=0.03)


def test_quantised_values() -> None:
    reply = {"w": torch.tensor([0.1, -3.0, 70000.0])}
    assert Quantize(method="sign").on_reply(reply, "gradient", generator(0))["w"].sign().tolist() == [
        1,
        -1,
        1,
    ]
    half = Quantize(method="float16").on_reply(reply, "gradient", generator(0))["w"]
    assert half.tolist() == pytest.approx([0.1, -3.0, 65504.0], rel=1e-3)
    brain = Quantize(method="bfloat16").on_reply(reply, "gradient", generator(0))["w"]
    assert brain.tolist() == pytest.approx([0.1, -3.0, 70000.0], rel=1e-2)


@pytest.mark.parametrize(("method", "bits"), [("qsgd", math.log2(9)), ("sign", 1), ("bfloat16", 16)])
def test_a_quantised_number_takes_as_many_bits_as_it_has_values(method: str, bits: float) -> None:
    assert Quantize(method=method, levels=4).bits == pytest.approx(bits)


@pytest.mark.parametrize("defense", [Quantize(method="sign"), Clip(max_norm=1.0)])
def test_a_defense_after_which_earlier_noise_has_another_deviation_says_so(defense: Defense) -> None:
    noisy = {"w": Noise(sigma=1.0).on_reply({"w": torch.zeros(1000)}, "gradient", generator(0))["w"]}
    changed = defense.on_reply(noisy, "gradient", generator(1))["w"]
    assert abs(float(changed.std()) - 1) > 0.1
    assert defense.rescales


def test_bytes_are_those_of_the_best_encoding() -> None:
    reply = {"w": torch.ones(1000), "b": torch.ones(8)}
    assert dense_bytes(reply) == wire_bytes(reply) == 4 * 1008
    assert wire_bytes(reply, 16) == 2 * 1008
    assert wire_bytes(reply, 1) == (1008 + 2 * 32) // 8  # and a scale for each tensor
    few = {"w": torch.zeros(1000).index_fill(0, torch.tensor([1, 5]), 1.0)}
    assert wire_bytes(few) == math.ceil(2 * (32 + 10) / 8)  # a place among 1000 takes 10 bits


def test_laplace_noise_has_the_same_deviation_and_heavier_tails() -> None:
    zeros = {"w": torch.zeros(200_000)}
    drawn = Noise(sigma=0.5, distribution="laplace").on_reply(zeros, "gradient", generator(3))["w"]
    assert float(drawn.std()) == pytest.approx(0.5, rel=0.02)
    assert float((drawn / 0.5).pow(4).mean()) == pytest.approx(6, rel=0.15)  # normal: 3


def test_the_rarest_draw_of_laplace_noise_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **more: torch.zeros(shape, dtype=more["dtype"]))
    drawn = Noise(sigma=1.0, distribution="laplace").on_reply({"w": torch.zeros(3)}, "gradient", generator(0))
    assert bool(drawn["w"].isfinite().all())


def test_relative_noise_follows_each_tensor() -> None:
    reply = {"large": torch.full((50_000,), 10.0), "small": torch.full((50_000,), 0.1)}
    noisy = Noise(sigma=0.2, relative=True).on_reply(reply, "gradient", generator(4))
    assert float(noisy["large"].std()) == pytest.approx(2.0, rel=0.03)
    assert float(noisy["small"].std()) == pytest.approx(0.02, rel=0.03)


def test_clipping_by_tensor_leaves_short_ones_alone() -> None:
    reply = {"long": torch.tensor([3.0, 4.0]), "short": torch.tensor([0.3])}
    clipped = Clip(max_norm=1.0, scope="tensor").on_reply(reply, "gradient", generator(0))
    assert clipped["long"].tolist() == pytest.approx([0.6, 0.8])
    assert clipped["short"].tolist() == reply["short"].tolist()


@given(rate=st.floats(0, 0.99), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_every_way_of_sparsifying_drops_the_same_share(rate: float, seed: int) -> None:
    reply = {
        "a": torch.randn(40, generator=generator(seed, 1)),
        "b": torch.randn(7, 9, generator=generator(seed, 2)),
    }
    for keep in ("largest", "random"):
        model = Sparsify(rate=rate, keep=keep, scope="model").on_reply(reply, "gradient", generator(seed))
        assert sum(int((tensor == 0).sum()) for tensor in model.values()) == int(rate * 103)
        each = Sparsify(rate=rate, keep=keep).on_reply(reply, "gradient", generator(seed))
        assert int((each["b"] == 0).sum()) == int(rate * 63)
        for name, tensor in model.items():
            assert torch.equal(tensor[tensor != 0], reply[name][tensor != 0])


def test_the_largest_entries_are_kept_or_any() -> None:
    reply = {"w": torch.arange(1.0, 101.0) * torch.tensor([1.0, -1.0]).repeat(50)}
    largest = Sparsify(rate=0.6, keep="largest").on_reply(reply, "gradient", generator(0))["w"]
    assert largest.nonzero().flatten().tolist() == list(range(60, 100))
    kept = Sparsify(rate=0.6, keep="random").on_reply(reply, "gradient", generator(0))["w"].nonzero()
    assert 10 < int((kept < 60).sum()) < 38  # 24 on average


def test_mixed_batches_are_between_their_examples() -> None:
    images = torch.rand(6, 1, 4, 4, generator=generator(5))
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    mixed, shares = Mixup(alpha=1.0).on_batch(images, labels, generator(6))
    assert torch.allclose(shares.sum(1), torch.ones(6))
    assert not torch.equal(mixed, images)
    assert float(mixed.min()) >= float(images.min())
    again, _ = Mixup(alpha=1.0).on_batch(images, labels, generator(6))
    assert torch.equal(mixed, again)
    twice, both = Mixup().on_batch(mixed, shares, generator(7))  # composes
    assert torch.allclose(both.sum(1), torch.ones(6))
    assert twice.shape == images.shape


def test_the_last_bias_stays_at_home() -> None:
    model = mlp(TASK, width=10)
    gradient, _ = batch_gradient(model, torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 2]))
    sent = NoBias().on_reply(gradient, "gradient", generator(0))
    assert not sent["output.bias"].any()
    assert all(torch.equal(sent[name], gradient[name]) for name in gradient if name != "output.bias")
    with pytest.raises(FedsimError, match=r"last parameter is a bias, got 'w'"):
        NoBias().on_reply({"w": torch.ones(2)}, "gradient", generator(0))


@pytest.mark.parametrize("names", [None, ["output"]])
def test_frozen_parameters_are_neither_trained_nor_sent(names: list[str] | None) -> None:
    model = mlp(TASK, width=10)
    now = step(model, 3)
    gradient, _ = batch_gradient(model, now.images, now.labels)
    frozen = names[0] if names else next(iter(gradient)).rpartition(".")[0]
    for sent in (
        Freeze(names=names).on_gradient(gradient, now, generator(0)),
        Freeze(names=names).on_reply(gradient, "update", generator(0)),
    ):
        for name, tensor in gradient.items():
            kept = torch.zeros_like(tensor) if name.startswith(f"{frozen}.") else tensor
            assert torch.equal(sent[name], kept)
    with pytest.raises(FedsimError, match=r"expected beginnings of names of parameters, got .*'nothing'"):
        Freeze(names=["output", "nothing"]).on_reply(gradient, "update", generator(0))


def test_soteria_drops_features_of_small_slope() -> None:
    torch.manual_seed(0)
    model = lenet5(Task(input_shape=(1, 28, 28), num_classes=4), activation="tanh").eval()
    now = step(model, 3, shape=(1, 28, 28))
    gradient, _ = batch_gradient(model, now.images, now.labels)
    sent = Soteria(rate=0.25).on_gradient(gradient, now, generator(0))
    name = next(name for name in gradient if not torch.equal(sent[name], gradient[name]))
    columns = (sent[name] == 0).all(0)
    assert int(columns.sum()) == 21  # of 84
    slopes = feature_slopes(model, name.removesuffix(".weight"), now.images)
    assert float(slopes[columns].max()) <= float(slopes[~columns].min())
    assert [key for key in gradient if not torch.equal(sent[key], gradient[key])] == [name]


def test_slopes_of_features_are_those_of_a_jacobian() -> None:
    torch.manual_seed(1)
    model = mlp(TASK, width=6, activation="tanh").eval()
    images = torch.rand(2, 1, 8, 8, generator=generator(9))
    body = nn.Sequential(*list(model.children())[:-1])
    expected = torch.zeros(6)
    for image in images:
        jacobian = torch.autograd.functional.jacobian(lambda x: body(x)[0], image[None]).flatten(1)
        expected += jacobian.norm(dim=1) / body(image[None])[0].abs()
    assert torch.allclose(feature_slopes(model, "output", images), expected, rtol=1e-4)


def test_soft_labels_give_the_gradient_of_soft_cross_entropy() -> None:
    model = mlp(TASK, width=6)
    images, shares = torch.rand(3, 1, 8, 8), torch.softmax(torch.randn(3, 4), dim=1)
    gradient, loss = batch_gradient(model, images, shares)
    expected = -(shares * functional.log_softmax(model(images), dim=1)).sum(1).mean()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    assert set(gradient) == {name for name, _ in model.named_parameters()}


MAKERS = {
    "clip": lambda: Clip(max_norm=0.7),
    "noise": lambda: Noise(sigma=0.1),
    "sparsify": lambda: Sparsify(rate=0.5),
    "random": lambda: Sparsify(rate=0.5, keep="random"),
    "qsgd": lambda: Quantize(levels=4),
    "sign": lambda: Quantize(method="sign"),
}


@given(chain=st.lists(st.sampled_from(sorted(MAKERS)), min_size=1, max_size=4), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_chains_act_in_order_and_draw_from_their_seed_alone(chain: list[str], seed: int) -> None:
    reply = {"w": torch.randn(5, 7, generator=generator(seed, "reply")), "b": torch.ones(3)}
    before = {name: tensor.clone() for name, tensor in reply.items()}

    def send(seed: int) -> dict[str, torch.Tensor]:
        now = reply
        for place, name in enumerate(chain):
            now = MAKERS[name]().on_reply(now, "gradient", generator(seed, place))
        return now

    torch.manual_seed(1)
    first = send(seed)
    torch.manual_seed(2)  # the global state plays no part
    again, other = send(seed), send(seed + 1)
    assert all(torch.equal(first[name], again[name]) for name in reply)
    assert all(torch.equal(reply[name], before[name]) for name in reply), "a defense wrote into its input"
    if "noise" in chain[-1:]:
        assert not torch.equal(first["w"], other["w"])
    if chain[-1] == "sparsify":
        assert int((first["w"] == 0).sum()) >= 17
    if chain[-1] == "clip":
        assert math.hypot(*(float(tensor.norm()) for tensor in first.values())) <= 0.7 + 1e-5
    if chain[-1] == "sign":
        assert len(first["w"].abs().unique()) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: Clip(scope="layer"),
        lambda: Noise(distribution="cauchy"),
        lambda: Sparsify(keep="none"),
        lambda: Sparsify(scope="layer"),
        lambda: Quantize(method="int8"),
        lambda: Quantize(levels=0),
        lambda: Mixup(alpha=0),
        lambda: Soteria(rate=1.0),
        lambda: DP(max_norm=0),
        lambda: DP(sigma=-1),
        lambda: DP(delta=0),
        lambda: DP(accountant="guess"),
        lambda: DP(max_norm=math.inf),
        lambda: DP(sigma=math.inf),
        lambda: DP(sigma=True),
        lambda: DP(sigma="1"),
        lambda: DP(delta="small"),
        lambda: Clip(max_norm=math.inf),
        lambda: Clip(max_norm="1"),
        lambda: Noise(sigma=True),
        lambda: Noise(relative="off"),
        lambda: Sparsify(rate="0.5"),
        lambda: Sparsify(rate=False),
        lambda: Soteria(rate=None),
        lambda: Mixup(alpha=math.inf),
    ],
)
def test_wrong_settings_are_refused(make) -> None:
    with pytest.raises(FedsimError, match=r"defense\.\w+\.\w+: expected .* got"):
        make()
