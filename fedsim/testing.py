"""What fedsim asks of every part, from attack to yaml, for a plug-in's own tests.

    def test_my_attack() -> None:
        check_attack(MyAttack())

Each function returns nothing, or raises an AssertionError that says what was expected.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Generator, Tensor, nn

from fedsim.api.choose import model as model_by_name
from fedsim.api.observe import observation, observe
from fedsim.config.plugins import LISTED
from fedsim.contracts import check_audit as check_audit
from fedsim.contracts import check_client as check_client
from fedsim.contracts import check_engine as check_engine
from fedsim.contracts import check_forgery as check_forgery
from fedsim.contracts import copies, expect, same_weights
from fedsim.contracts import small_challenge as small_challenge
from fedsim.contracts import small_data as small_data
from fedsim.contracts import small_model as small_model
from fedsim.core.federation import Federation
from fedsim.core.inputs import Tokens
from fedsim.core.interfaces import Attack, Defense, LocalStep
from fedsim.core.randomness import generator
from fedsim.core.training import batch_gradient, load_weights
from fedsim.core.types import Observation, Task, Weights
from fedsim.data.images import Dataset
from fedsim.metric_contracts import check_metric as check_metric
from fedsim.metric_contracts import small_set as small_set

FLOAT_BITS = 32  # of a number that no defense made smaller
BESIDE_ARGUMENTS = ("_target_", "checkpoint", "share")  # keys of a yaml that its target does not take


def check_attack(
    attack: Attack, *, batch_size: int = 6, model: nn.Module | None = None, data: Dataset | None = None
) -> None:
    """Run an attack twice on a gradient of small images: alike, well formed, and nothing else is touched.

    model: one that it works on; a fully connected one unless it is told. See small_model. data: what it
    takes, if not small images.
    """
    expect(isinstance(attack, Attack), f"an Attack, got {type(attack).__name__}")
    data, model = small_data() if data is None else data, small_model() if model is None else model
    honest = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    crafted = attack.craft(model, data.task, 1, honest)
    crafted = attack.tailor(model, data.task, 1, 0, crafted)
    expect(attack.crafts() or crafted is honest, "crafts() to say so where craft() changes the weights")
    load_weights(model, crafted)
    attack.check(model, data.task)  # or says why not: it must not refuse what run() works on
    images, labels = data.train.batch(torch.arange(batch_size)), data.train.labels[:batch_size]
    gradient, _ = batch_gradient(model, images, labels)
    seen = observation(model, gradient, num_examples=batch_size)
    before = _copies({"sent": seen.sent, "received": seen.received})
    first = attack.run(model, data.task, [seen])
    second = attack.run(model, data.task, [seen])
    for name in (
        "images",
        "tokens",
        "token_presence",
        "labels",
        "class_counts",
        "class_presence",
        "embeddings",
        "probabilities",
    ):
        left, right = getattr(first, name), getattr(second, name)
        expect(_same(left, right), f"the same {name} from the same observation, whenever it runs")
    expect(first.trace == second.trace, "the same trace from the same observation")
    expect(first.residual == second.residual, "the same residual from the same observation")
    after = _copies({"sent": seen.sent, "received": seen.received})
    expect(all(_same(before[key], after[key]) for key in before), "the observation to stay as it was")
    classes = (data.task.num_classes,)
    for name in ("class_counts", "class_presence"):
        found = getattr(first, name)
        expect(found is None or found.shape == classes, f"{name} of {classes[0]} classes")
    if first.class_counts is not None:
        expect(int(first.class_counts.min()) >= 0, "class_counts of at least 0")
    if first.tokens is not None:
        expect(first.tokens.shape[1:] == data.task.input_shape, f"tokens of shape {data.task.input_shape}")
    if first.images is not None:
        expect(first.images.shape[1:] == data.task.input_shape, f"images of shape {data.task.input_shape}")


def check_defense(defense: Defense) -> None:
    """Look at what a defense does: a server sees something else, repeatably, as claimed; input untouched."""
    expect(isinstance(defense, Defense), f"a Defense, got {type(defense).__name__}")
    _check_hooks(defense)
    reply = made_up_reply()
    sent = defense.on_reply(copies(reply), "gradient", generator(2))
    Observation(round=1, client=0, sent=reply, received=sent, kind="gradient")  # or says what is wrong
    if defense.bits is not None and defense.bits < FLOAT_BITS:
        most = max(len(set(tensor.flatten().tolist())) for tensor in sent.values())
        expect(
            most <= round(2**defense.bits), f"numbers of {defense.bits:.3g} bits, got {most} different ones"
        )
    rules = Federation(clients=3)
    acts = (
        defense.sums_replies
        or defense.inspects
        or defense.rules(rules) != rules
        or not same_weights(sent, reply)
    )
    if not defense.sums_replies:
        plain, seen, again, other = (
            _seen(defenses, seed)
            for defenses, seed in (((), 0), ((defense,), 0), ((defense,), 0), ((defense,), 1))
        )
        expect(same_weights(seen.received, again.received), "the same local round of the same seed")
        acts = acts or seen.kind != plain.kind or not same_weights(seen.received, plain.received)
        _check_known(plain, seen, other)
        skips = _zeros(sent) > _zeros(reply) or _zeros(seen.received) > _zeros(plain.received)
        zeros = defense.known(seen).zeros or (defense.sparse and defense.bits is None)
        expect(skips or not zeros, "zeros in what is sent, where it says that there are")
        expect(defense.sparse or not defense.known(seen).zeros, "sparse where zeros are known to be")
    expect(acts, "that a server sees something else than without it")
    if defense.repeatable:
        _check_repeatable(defense, reply, sent)


def _check_repeatable(defense: Defense, reply: Weights, sent: Weights) -> None:
    """Hold a defense to what it tells an audit: no chance, no memory, and nothing within the steps."""
    again = defense.on_reply(copies(reply), "gradient", generator(3))
    expect(same_weights(sent, again), "the same reply whatever the chance, of a defense that is repeatable")
    kind = type(defense)
    within = kind.on_batch is not Defense.on_batch or kind.on_gradient is not Defense.on_gradient
    plain = not (within or defense.keeps_rest or defense.sums_replies)
    expect(plain, "a repeatable defense to act on replies alone, without memory")


def made_up_reply() -> dict[str, Tensor]:
    """Return a reply of 1240 normal numbers that no model gave."""
    return {
        "weight": torch.randn(40, 30, generator=generator(0)),
        "bias": torch.randn(40, generator=generator(1)),
    }


def _check_hooks(defense: Defense) -> None:
    """Call each hook: input untouched, chance from its generator alone, and from all of it."""
    data, model = small_data(), small_model()
    images, labels = data.train.batch(torch.arange(10)), data.train.labels[:10]
    step = LocalStep(model=model, images=images, labels=labels)
    gradient, _ = batch_gradient(model, images, labels)
    weights = copies(dict(model.named_parameters()))
    reply = made_up_reply()
    hooks: dict[str, tuple[Weights, Callable[[Generator], Weights]]] = {
        "reply": (reply, lambda chance: defense.on_reply(reply, "gradient", chance)),
        "gradient": (gradient, lambda chance: defense.on_gradient(gradient, step, chance)),
        "batch": (
            {"images": images, "labels": labels},
            lambda chance: dict(
                zip(("images", "labels"), defense.on_batch(images, labels, chance), strict=True)
            ),
        ),
    }
    for name, (given, hook) in hooks.items():
        before, chance = copies(given), generator(2)
        first, again, other = hook(chance), hook(generator(2)), hook(generator(3))
        expect(same_weights(first, again), f"the same {name} of the same generator")
        expect(same_weights(before, given), f"the {name} given to stay as it was")
        draws = not torch.equal(chance.get_state(), generator(2).get_state())
        expect(draws != same_weights(first, other), f"that chance decides on the {name}, if it is drawn")
    unchanged = same_weights(weights, dict(model.named_parameters()))
    expect(unchanged, "the model given to stay as it was")


def _seen(defenses: Sequence[Defense], seed: int) -> Observation:
    """Return what a server sees of ten small images, by an attacker who knows the settings."""
    data = small_data()
    images, labels = data.train.batch(torch.arange(10)), data.train.labels[:10]
    return observe(small_model(), images, labels, defenses=defenses, knows_defenses=True, seed=seed)


def _check_known(plain: Observation, seen: Observation, other: Observation) -> None:
    """Hold the deviation of noise that an attacker is told against two draws of it."""
    known = seen.defense
    if known is None or not (known.noise or known.relative_noise):
        return
    told, found, size = 0.0, 0.0, 0
    for name, tensor in plain.received.items():
        scale = float(tensor.double().square().mean())
        told += (known.noise**2 + known.relative_noise**2 * scale) * tensor.numel()
        found += float((seen.received[name] - other.received[name]).double().square().sum()) / 2
        size += tensor.numel()
    told, found = (told / size) ** 0.5, (found / size) ** 0.5
    expect(abs(found / told - 1) < 0.1, f"noise of the deviation it tells, {told:.3g}, got {found:.3g}")


def _zeros(weights: Weights) -> int:
    return sum(int((tensor == 0).sum()) for tensor in weights.values())


def check_model(name: str, *, task: Task | None = None, **settings: Any) -> nn.Module:
    """Build a model twice: logits of small colour images, and the same weights of the same seed.

    task: of seven classes, if it takes no images.
    """
    task = Task(input_shape=(3, 32, 32), num_classes=7, mean=(0.4,), std=(0.2,)) if task is None else task
    model, twin = (model_by_name(name, task=task, **settings) for _ in range(2))
    expect(not model.training, "a model in evaluation mode")
    shape = tuple(model(torch.rand(2, *task.input_shape, generator=generator(0))).shape)
    expect(shape == (2, 7), f"logits of shape (2, 7), got {shape}")
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    expect(all(torch.equal(one, two) for one, two in pairs), "the same initialisation of the same seed")
    return model


def check_data(data: Dataset) -> None:
    """Read some inputs of a data set: float32 in [0, 1] or known tokens, and every class among the labels."""
    expect(isinstance(data, Dataset), f"a Dataset, got {type(data).__name__}")
    for images in (data.train, data.test):
        batch = images.batch(torch.arange(5))
        tokens, shape = isinstance(data.task.inputs, Tokens), data.task.input_shape
        kind, most = (torch.int64, data.task.num_tokens) if tokens else (torch.float32, 1)
        expect(batch.dtype == kind, f"{kind} inputs, got {batch.dtype}")
        expect(batch.shape == (5, *shape), f"inputs of shape {shape}")
        expect(0 <= float(batch.min()) < float(batch.max()) <= most, f"inputs in [0, {most}], not all alike")
        expect(images.labels.dtype == torch.int64, f"int64 labels, got {images.labels.dtype}")
        found, classes = set(images.labels.flatten().tolist()), set(range(data.task.num_classes))
        if images.labels.ndim == 2:  # next tokens: not all occur, and some places have none
            expect(found <= classes | {-100}, "labels of the vocabulary, or -100")
            continue
        expect(found == classes, f"labels of all {data.task.num_classes} classes")


def check_yaml(path: Path, *, presets: Collection[str] = ()) -> None:
    """Hold a yaml against its target: every argument, in order, with its default.

    presets: arguments that this yaml is there to set otherwise.
    """
    text, group, name = path.read_text(encoding="utf-8"), path.parent.name, path.stem
    if group in LISTED:
        expect(text.startswith(f"# @package {group}.{name}\n"), f"{path} to begin with its package")
    config = yaml.safe_load(text)
    given = {key: value for key, value in config.items() if key not in BESIDE_ARGUMENTS}
    parameters = dict(inspect.signature(_target(config)).parameters)
    parameters.pop("task", None)  # which models are called with
    expect(list(given) == list(parameters), f"{path} to name {list(parameters)}, got {list(given)}")
    for key, parameter in parameters.items():
        expect(parameter.kind is inspect.Parameter.KEYWORD_ONLY, f"{path}: {key} to be keyword-only")
        if parameter.default is inspect.Parameter.empty or key in presets or given[key] == "${seed}":
            continue
        value = tuple(given[key]) if isinstance(given[key], list) else given[key]
        expect(value == parameter.default, f"{path}: {key} to be {parameter.default!r}, got {value!r}")


def _target(config: Mapping[str, Any]) -> Any:
    module, _, name = str(config["_target_"]).rpartition(".")
    return getattr(import_module(module), name)


def _copies(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{kind} {name}": t.clone() for kind, group in groups.items() for name, t in group.items()}


def _same(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return torch.equal(left, right)
