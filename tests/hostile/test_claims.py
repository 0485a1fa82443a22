"""What a client claims of its training must not make an attack loop, take all memory or crash."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.exact.peeling import Peeling
from fedsim.attacks.privacy.labels.bias_corrected import deal_out
from fedsim.attacks.privacy.labels.counts import nearest_counts, repair_counts
from fedsim.attacks.privacy.labels.last_layer import without_noise
from fedsim.attacks.privacy.matching.labels import Given
from fedsim.attacks.privacy.matching.matching import Matching
from fedsim.attacks.privacy.matching.objectives import Cosine
from fedsim.attacks.privacy.matching.optimisers import LBFGS, Adam
from fedsim.attacks.privacy.matching.starts import Normal
from fedsim.attacks.privacy.stein.batch import hidden_moments
from fedsim.attacks.privacy.stein.moments import projected
from fedsim.attacks.privacy.stein.stein import Stein
from fedsim.attacks.privacy.stein.stein_exact import SteinExact, whole_shares
from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.training import batch_gradient, load_weights
from fedsim.core.types import Observation, Reconstruction, Task, Weights
from fedsim.data.synthetic import synthetic
from fedsim.models.mlp import mlp
from fedsim.models.softmax import softmax
from fedsim.models.two_layer import two_layer

CONF = Path(__file__).parents[2] / "conf" / "attack"
ATTACKS = sorted(path.stem for path in CONF.glob("*.yaml"))
ONE_IMAGE = {"rgap", "gauss_newton"}
DATA = synthetic(shape=(1, 8, 8), num_classes=4, train_size=160, test_size=40)
STEPS = 150_000  # of torch: an attack on these tiny batches takes a few thousand
NUMBERS = 2**25  # in a tensor


class Meter(TorchDispatchMode):
    """Stops an attack that takes more steps or larger tensors than a tiny batch is worth."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.numbers = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.steps += 1
        for part in made if isinstance(made, tuple | list) else (made,):
            if isinstance(part, Tensor):
                self.numbers = max(self.numbers, part.numel())
        self.check()
        return made

    def check(self) -> None:
        assert self.steps <= STEPS, "an endless loop"
        assert self.numbers <= NUMBERS, f"a tensor of {self.numbers} numbers"


def metered(attack: Attack, model: nn.Module, task: Task, seen: Observation) -> Reconstruction | FedsimError:
    """Return what comes of an attack, which is a reconstruction or a refusal, within bounds."""
    with Meter() as meter:
        try:
            return attack.run(model, task, [seen])
        except FedsimError as error:
            return error
        finally:
            meter.check()  # an attack may have caught it


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class World:
    attack: Attack
    model: nn.Module
    seen: Observation  # an honest gradient
    update: Observation  # the same as an update


@functools.cache
def world(name: str) -> World:
    """A tiny federation in which one batch was honestly observed."""
    config = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    few = ["attack.optimiser.iterations=1"] if "optimiser" in config else []
    few += ["attack.optimiser.products=3"] if name == "gauss_newton" else []
    few += ["attack.iterations=3"] if name == "stein" else []
    few += ["attack.steps=30"] if name == "first_layer_peeling" else []
    head = "+attack.features={_target_: fedsim.attacks.privacy.exact.head_peeling.HeadPeeling}"
    few += ["~attack.features", head] if name == "feature_inversion" else []
    few += ["attack.annealing=30", "attack.starts=32"] if name in ("peeling", "fedavg_peeling") else []
    data = ["data=synthetic", "data.shape=[1,8,8]", "data.num_classes=4", "data.train_size=160"]
    network = ["model=mlp", "model.width=40", f"model.activation={'tanh' if name in ONE_IMAGE else 'relu'}"]
    network = ["model=resnet18"] if name == "residual_fishing" else network
    network += ["model.depth=2"] if name == "fishing" else []  # the target's logit stands behind its bins
    made = build.experiment(compose([f"attack={name}", *few, *data, *network, "name=test"]))
    honest = {key: parameter.detach().clone() for key, parameter in made.model.named_parameters()}
    sent = made.attack.craft(made.model, made.task, 1, honest)
    load_weights(made.model, sent)
    seen = observed(made.model, 1 if name in ONE_IMAGE else 6)
    update = dataclasses.replace(
        seen, kind="update", received=scaled(seen, -0.1), learning_rate=0.1, local_steps=1
    )
    return World(attack=made.attack, model=made.model, seen=seen, update=update)


def observed(model: nn.Module, number: int) -> Observation:
    images, labels = DATA.train.batch(torch.arange(number)), DATA.train.labels[:number]
    return Observation(
        round=1,
        client=0,
        sent={key: parameter.detach().clone() for key, parameter in model.named_parameters()},
        received=batch_gradient(model, images, labels)[0],
        kind="gradient",
        num_examples=number,
        loss=1.4,
        class_counts=tuple(labels.bincount(minlength=4).tolist()),
    )


def scaled(seen: Observation, factor: float) -> Weights:
    return {key: (tensor * factor).clamp(-3e38, 3e38) for key, tensor in seen.received.items()}


def filled(seen: Observation, value: float, places: slice = slice(None)) -> Weights:
    """The same reply with one value in some of its tensors."""
    names = list(seen.received)[places]
    return {
        key: torch.full_like(tensor, value) if key in names else tensor
        for key, tensor in seen.received.items()
    }


def noise(seen: Observation, size: float) -> Weights:
    return {
        key: (torch.randn(tensor.shape, generator=generator(0, key)) * size).clamp(-3e38, 3e38)
        for key, tensor in seen.received.items()
    }


Lie = Callable[[World], Observation]
HUGE = 2**40


def claim(**told: object) -> Lie:
    return lambda world: dataclasses.replace(world.seen, **told)  # type: ignore[arg-type]


def update_claim(**told: object) -> Lie:
    return lambda world: dataclasses.replace(world.update, **told)  # type: ignore[arg-type]


def reply(make: Callable[[Observation], Weights]) -> Lie:
    return lambda world: dataclasses.replace(world.seen, received=make(world.seen))


IMPOSSIBLE: dict[str, Lie] = {  # no attack that reads the reply may go along with these
    "no examples": claim(num_examples=0),
    "2**40 examples": claim(num_examples=HUGE),
    "2**40 examples of an update": update_claim(num_examples=HUGE),
    "2**40 steps": update_claim(local_steps=HUGE),
    "2**40 steps, untold examples": update_claim(local_steps=HUGE, num_examples=None),
    "2**40 steps of an example each": update_claim(local_steps=HUGE, num_examples=HUGE),
    "2**40 steps behind a gradient": claim(local_steps=HUGE),
    "entries of 1e30": reply(lambda seen: filled(seen, 1e30)),
    "entries of 1e38": reply(lambda seen: scaled(seen, 1e38)),
    "noise of 1e38": reply(lambda seen: noise(seen, 1e38)),
}
ABSURD: dict[str, Lie] = {  # these some attacks can work on
    "one example": claim(num_examples=1),
    "2**20 examples": claim(num_examples=2**20),
    "2**20 steps of an example each": update_claim(local_steps=2**20, num_examples=2**20),
    "learning rate 0": update_claim(learning_rate=0.0),
    "learning rate 1e-300": update_claim(learning_rate=1e-300),
    "learning rate 1e-17": update_claim(learning_rate=1e-17),
    "learning rate 5e-324": update_claim(learning_rate=5e-324),
    "learning rate 1e300": update_claim(learning_rate=1e300),
    "an absurd loss and class counts": claim(loss=1e300, class_counts=(HUGE, 0, 0, 0)),
    "all zeros": reply(lambda seen: filled(seen, 0.0)),
    "an update of zeros": lambda world: dataclasses.replace(world.update, received=filled(world.update, 0.0)),
    "denormals": reply(lambda seen: filled(seen, 1e-42)),
    "a denormal gradient": reply(lambda seen: scaled(seen, 1e-42)),
    "a denormal last bias": reply(lambda seen: filled(seen, 1e-42, slice(-1, None))),
    "no last bias": reply(lambda seen: filled(seen, 0.0, slice(-1, None))),
    "a last bias alone": reply(lambda seen: filled(seen, 0.0, slice(None, -1))),
    "noise": reply(lambda seen: noise(seen, 1.0)),
    "noise of 1e17": reply(lambda seen: noise(seen, 1e17)),
}


@pytest.mark.parametrize("lie", IMPOSSIBLE)
@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "none"])
def test_no_attack_goes_along_with_an_impossible_claim(name: str, lie: str) -> None:
    here = world(name)
    met = metered(here.attack, here.model, DATA.task, IMPOSSIBLE[lie](here))
    assert isinstance(met, FedsimError)
    assert "expected" in str(met)


@pytest.mark.parametrize("lie", ABSURD)
@pytest.mark.parametrize("name", ATTACKS)
def test_an_absurd_claim_ends_in_a_reconstruction_or_a_refusal(name: str, lie: str) -> None:
    here = world(name)
    seen = ABSURD[lie](here)
    met = metered(here.attack, here.model, DATA.task, seen)
    if isinstance(met, Reconstruction):
        for part in (met.images, met.embeddings, met.probabilities):
            assert part is None or bool(torch.isfinite(part).all())
        assert met.class_counts is None or int(met.class_counts.min()) >= 0


def one_by_one(entries: Tensor, impact: float, examples: int) -> Tensor:
    """Every example to the smallest entry, which grows."""
    entries, counts = entries.clone(), torch.zeros(len(entries), dtype=torch.int64)
    for _ in range(examples):
        smallest = int(entries.argmin())
        counts[smallest] += 1
        entries[smallest] += impact
    return counts


@pytest.mark.parametrize("examples", [1, 7, 300, 4000])
@pytest.mark.parametrize("kind", ["normal", "equal", "grid", "wide"])
def test_examples_are_dealt_as_one_by_one(kind: str, examples: int) -> None:
    random = generator(examples, kind)
    entries = {
        "normal": torch.randn(20, generator=random, dtype=torch.float64),
        "equal": torch.full((20,), 0.1, dtype=torch.float64),
        "grid": torch.randint(-3, 4, (20,), generator=random).double() / 7,
        "wide": torch.randn(20, generator=random).double() * 10.0 ** torch.arange(-35, 5, 2),
    }[kind]
    impact = float(entries.abs().sum()) / examples
    assert torch.equal(deal_out(entries, impact, examples), one_by_one(entries, impact, examples))
    assert torch.equal(deal_out(entries, 0.0, examples), one_by_one(entries, 0.0, examples))


def test_a_million_examples_are_dealt_at_once() -> None:
    entries = torch.tensor([0.3, -0.5, -0.2], dtype=torch.float64)
    with Meter() as meter:
        counts = deal_out(entries, 0.7 / 2**20, 2**20)
    assert int(counts.sum()) == 2**20
    assert meter.steps < 100


@pytest.mark.parametrize("size", [3, 5, 60])
@pytest.mark.parametrize("kind", ["even", "uneven", "zeros"])
def test_shares_become_whole_as_one_by_one(kind: str, size: int) -> None:
    shares = torch.rand(5, 4, generator=generator(size), dtype=torch.float64)
    shares = {"even": shares.ceil(), "uneven": shares * size / shares.sum(), "zeros": shares * 0}[kind]
    counts = torch.zeros(5, 4, dtype=torch.int64)
    counts[torch.arange(5), shares.argmax(1)] = 1
    for _ in range(size - 5):
        counts.view(-1)[(shares - counts).argmax()] += 1
    assert torch.equal(whole_shares(shares, size), counts)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e30])
def test_proportions_that_are_none_are_refused(number: float) -> None:
    proportions = torch.tensor([0.5, number, 0.5, 0.25], dtype=torch.float64)
    with pytest.raises(FedsimError, match="expected proportions"):
        repair_counts(proportions, 6)
    with pytest.raises(FedsimError, match="expected proportions"):
        nearest_counts(proportions, 6)


def test_an_image_is_shown_as_often_as_it_is_claimed_but_not_endlessly() -> None:
    torch.manual_seed(0)
    model = softmax(DATA.task)
    seen = observed(model, 1)
    met = metered(Peeling(), model, DATA.task, dataclasses.replace(seen, num_examples=8))
    assert isinstance(met, Reconstruction)
    assert met.images is not None
    assert len(met.images) == 8  # a gradient is a mean: this may be true
    met = metered(Peeling(), model, DATA.task, dataclasses.replace(seen, num_examples=2**20))
    assert isinstance(met, FedsimError)
    assert "at most 262144 images" in str(met)


def crafted(attack: Attack, width: int) -> tuple[nn.Module, Observation]:
    torch.manual_seed(0)
    model = two_layer(DATA.task, width=width, activation="tanh")
    sent = attack.craft(model, DATA.task, 1, {key: p.detach() for key, p in model.named_parameters()})
    load_weights(model, sent)
    return model, observed(model, 4)


def test_an_exact_batch_is_as_large_as_memory_allows() -> None:
    attack = SteinExact()
    model, seen = crafted(attack, 128)
    met = metered(attack, model, DATA.task, dataclasses.replace(seen, num_examples=40_000))
    assert isinstance(met, Reconstruction)
    assert met.images is not None
    assert len(met.images) == 40_000
    met = metered(attack, model, DATA.task, dataclasses.replace(seen, num_examples=2**20))
    assert isinstance(met, FedsimError)
    assert "at most 262144 images" in str(met)


def test_moments_of_too_many_examples_are_refused() -> None:
    attack = Stein(order=4, bias=0.5, iterations=1)
    model, seen = crafted(attack, 256)
    met = metered(attack, model, DATA.task, dataclasses.replace(seen, num_examples=64))
    assert isinstance(met, FedsimError)
    assert "moments of 64 examples" in str(met)


def test_moments_that_nobody_asked_for_take_no_memory() -> None:
    weights, gradients = torch.randn(10, 80, generator=generator(0)), torch.ones(10)
    with Meter():
        third = projected(lambda: iter([(weights, gradients)]), torch.eye(80, dtype=torch.float64), 3)[2]
        second, none = hidden_moments(torch.ones(800, 400).double(), torch.ones(800, 400).double())
    assert third.shape == (80, 80, 80)
    assert not second.any()
    assert not none.numel()


def matching(optimiser: Adam | LBFGS, **parts: Any) -> Matching:
    return Matching(objective=Cosine(), labels=Given(), start=Normal(), optimiser=optimiser, **parts)


@pytest.mark.parametrize(
    "counts", [(HUGE, 0, 0, 0), (3, 3, 3, 3), (-1, 3, 2, 2), (6,), (2, 1, 1, 1, 1), (0, 0, 0, 0)]
)
def test_class_counts_must_add_up(counts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, attack = softmax(DATA.task), matching(Adam(iterations=1))
    seen = dataclasses.replace(observed(model, 6), class_counts=counts)
    met = metered(attack, model, DATA.task, seen)
    assert isinstance(met, FedsimError)
    assert "class_counts: expected 4 counts that add up to the 6 examples claimed" in str(met)
    told = metered(attack, model, DATA.task, dataclasses.replace(seen, num_examples=None))
    assert isinstance(told, FedsimError) == (counts != (3, 3, 3, 3))


def test_a_search_that_memory_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = mlp(DATA.task, width=40)
    seen = observed(model, 6)
    monkeypatch.setattr(claims, "memory", lambda device: 2**20)
    assert isinstance(metered(matching(Adam(iterations=1)), model, DATA.task, seen), Reconstruction)
    for attack in (matching(LBFGS(iterations=1, history=1000)), matching(Adam(iterations=1), candidates=400)):
        met = metered(attack, model, DATA.task, seen)
        assert isinstance(met, FedsimError)
        assert "the search for 6 images" in str(met)


def test_a_least_squares_search_does_without_a_large_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    here = world("gauss_newton")
    monkeypatch.setattr(claims, "memory", lambda device: 2**20)
    with Meter() as meter:
        here.attack.run(here.model, DATA.task, [here.seen])
    assert meter.numbers < 64 * sum(tensor.numel() for tensor in here.seen.received.values())


def test_memory_is_what_the_process_may_take(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = torch.device("cpu")
    monkeypatch.setattr(claims, "CONTAINER", tmp_path / "memory.max")
    monkeypatch.setattr(claims.resource, "getrlimit", lambda kind: (claims.resource.RLIM_INFINITY,) * 2)
    machine = claims.memory(here)
    assert machine > 2**28
    (tmp_path / "memory.max").write_text("max\n")
    assert claims.memory(here) == machine
    (tmp_path / "memory.max").write_text("100000000\n")
    assert claims.memory(here) == 100_000_000
    monkeypatch.setattr(claims.resource, "getrlimit", lambda kind: (1000, 1000))
    assert claims.memory(here) == 1000


def test_a_gradient_of_nothing_has_no_direction() -> None:
    target = [torch.ones(3), torch.ones(2)]
    for weighting in ("none", "layer"):
        for size in (0.0, 1e-30):
            value, slopes = Cosine(weighting=weighting).towards(target)([tensor * size for tensor in target])
            assert value == 1
            assert not any(bool(slope.any()) for slope in slopes)


def test_no_noise_is_taken_out_of_nothing() -> None:
    nothing = torch.zeros(4, dtype=torch.float64)
    assert torch.equal(without_noise(nothing, torch.zeros(4, 5, dtype=torch.float64), 0.1, 0.1), nothing)
