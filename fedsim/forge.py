"""The forging game: a recorded step, a batch claimed in place of the one it was taken on, a verdict.

Paper: Suliman et al., Towards a Re-evaluation of Data Forging Attacks in Practice (2024), algorithm 1.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from fedsim import progress
from fedsim.data.images import Images
from fedsim.errors import FedsimError, in_words
from fedsim.interfaces import Audit, CentralTraining, Challenge, Forgery, RecordedStep, StepVerdict
from fedsim.randomness import generator
from fedsim.training import Batch, arithmetic, load_weights, sgd_step, weights_of
from fedsim.types import Weights

REFERENCE = 1000  # test images that a verifier compares with


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the verifier asks for."""

    challenges: int = 5  # steps of the trace, drawn at random
    at: tuple[int, ...] | None = None  # or these
    batches: int | None = None  # at each of them the same batches, so many; None: the trace's own
    examples: tuple[int, ...] | None = None  # of the training data: every step that used one, without them
    fractions: tuple[float, ...] = (1.0,)  # of a batch that must not appear; 0: one example
    precision: str = "float32"  # of the steps
    delta: float | None = None  # how far a recomputed step may end up; None: calibrated on each step


@dataclass(frozen=True, kw_only=True, eq=False)
class Game:
    """Everything that a game needs."""

    name: str  # what distinguishes it from others beside it
    training: CentralTraining
    audit: Audit
    forgeries: Mapping[str, Forgery]
    reference: Images  # data of the same kind, not the prover's
    rules: Rules


@dataclass(frozen=True, kw_only=True, eq=False)
class Move:
    """One challenge, its answer, and what came of it."""

    game: str
    forgery: str
    step: int
    number: int  # of the batch
    unwanted: int  # examples that must not appear
    size: int  # of the batch
    gone: int  # of the unwanted, those that do not appear in the claimed batch
    planned: bool  # the adversary composed the batch that was trained on
    verdict: StepVerdict | None  # None: nothing was claimed
    reason: str  # of a rejection, or why nothing was claimed
    loss: float  # of the unwanted examples before the step
    moved: float  # root mean square of what the forgery changed in the unwanted images
    seconds: float
    suspicions: Mapping[str, float]  # of the claimed batch
    honest: Mapping[str, float]  # the same, of the batch at hand
    used: Batch
    claimed: Batch | None

    @property
    def accepted(self) -> bool:
        """Whether the adversary won."""
        return self.verdict is not None and self.verdict.accepted


def play(game: Game) -> Iterator[Move]:
    """Let the verifier train, then answer every challenge with every forgery."""
    indices = [game.audit.step_indices(game.training, step) for step in range(game.training.steps)]
    places = _places(game, indices)
    with arithmetic(game.rules.precision):
        weights = game.audit.weights_before(game.training, {step for step, _ in places})
    reference = _reference(game.reference)
    fractions = game.rules.fractions if game.rules.examples is None else (1.0,)  # it is said who must go
    todo = [(step, number, share) for step, number in places for share in fractions]
    with progress.bar("forging", len(todo) * len(game.forgeries)) as advance:
        for count, (step, number, share) in enumerate(todo):
            for place, (name, forgery) in enumerate(game.forgeries.items()):
                advance(count * len(game.forgeries) + place, f"{name}, step {step}")
                challenge = _challenge(game, weights[step], indices[number], step, number, share, name)
                yield _move(game, challenge, reference, step, number, name, forgery)


def _places(game: Game, indices: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return the challenged steps, each with the number of a batch: its own, or the first few."""
    rules, steps = game.rules, len(indices)
    if rules.examples is not None:
        used = [step for step in range(steps) if set(rules.examples) & set(indices[step].tolist())]
        if not used:
            raise FedsimError(f"forge.examples: none of {list(rules.examples)} was used in {steps} steps")
        return [(step, step) for step in used]
    if rules.at is None:
        drawn = torch.randperm(steps, generator=generator(game.training.seed, "challenges"))
        chosen = drawn[: rules.challenges].sort().values.tolist()
    else:
        chosen = list(rules.at)
        if max(chosen) >= steps:
            raise FedsimError(f"forge.at: expected steps below proof.steps={steps}, got {max(chosen)}")
    if rules.batches is None:
        return [(step, step) for step in chosen]
    return [(step, number) for step in chosen for number in range(min(rules.batches, steps))]


def _challenge(
    game: Game, before: Weights, own: Tensor, step: int, number: int, fraction: float, name: str
) -> Challenge:
    """Return a challenge on the weights before a step, on the batch of these examples."""
    training = game.training
    kind = torch.float64 if game.rules.precision == "float64" else torch.float32
    model = training.fresh(0).to(kind)
    load_weights(model, before)

    def examples(indices: Tensor) -> Batch:
        images, labels = training.train.batch(indices), training.train.labels[indices]
        if kind == torch.float64:  # grey levels are whole again: float32 has rounded them
            images = torch.where(
                torch.round(images * 255) / 255 == images,
                torch.round(images * 255).double() / 255,
                images.double(),
            )
        return Batch(images=images, labels=labels)

    everything = torch.arange(len(training.train.labels))
    drawn = torch.randperm(len(own), generator=generator(training.seed, "unwanted", number))
    unwanted = drawn[: max(1, round(fraction * len(own)))].sort().values
    if game.rules.examples is not None:
        unwanted = torch.isin(own, torch.tensor(game.rules.examples)).nonzero().flatten()
        everything = everything[~torch.isin(everything, torch.tensor(game.rules.examples))]
    return Challenge(
        model=model,
        batch=examples(own),
        unwanted=unwanted,
        task=training.task,
        owned=everything[~torch.isin(everything, own)],
        examples=examples,
        generator=generator(training.seed, "forgery", name, step, number),
    )


def _move(
    game: Game,
    challenge: Challenge,
    reference: Batch,
    step: int,
    number: int,
    name: str,
    forgery: Forgery,
) -> Move:
    """Play one challenge: compose, train, forge, judge."""
    original, rate, precision = challenge.batch, game.training.learning_rate, game.rules.precision
    before = weights_of(challenge.model)
    unwanted = challenge.unwanted
    with torch.no_grad():
        logits = challenge.model(original.images[unwanted])
        loss = float(functional.cross_entropy(logits, original.labels[unwanted]))
    started = time.perf_counter()
    claimed: Batch | None = None
    used, reason = original, ""
    try:
        used = forgery.compose(challenge)
        claimed = forgery.forge(replace(challenge, batch=used))
    except FedsimError as error:
        reason = in_words(error)
    seconds = time.perf_counter() - started
    verdict = None
    if claimed is not None:
        load_weights(challenge.model, before)
        with arithmetic(precision):
            sgd_step(challenge.model, used, rate)
        recorded = RecordedStep(
            model=challenge.model,
            before=before,
            after=weights_of(challenge.model),
            batch=used,
            task=challenge.task,
            learning_rate=rate,
            precision=precision,
            threads=game.training.threads,
        )
        verdict = game.audit.judge_step(recorded, claimed, game.rules.delta)
        reason = verdict.reason
    shown = original if claimed is None else claimed
    return Move(
        game=game.name,
        forgery=name,
        step=step,
        number=number,
        unwanted=len(unwanted),
        size=len(original.labels),
        gone=_gone(used, shown, unwanted),
        planned=used is not original,
        verdict=verdict,
        reason=reason,
        loss=loss,
        moved=_moved(used, shown, unwanted),
        seconds=seconds,
        suspicions=game.audit.suspicions(shown, reference),
        honest=game.audit.suspicions(original, reference),
        used=used,
        claimed=claimed,
    )


def _gone(used: Batch, claimed: Batch, unwanted: Tensor) -> int:
    """Return how many of the unwanted examples, image and label, are nowhere in the claimed batch."""
    count = 0
    for place in unwanted.tolist():
        same = (claimed.images.to(used.images) == used.images[place]).flatten(1).all(dim=1)
        if claimed.labels.dtype == torch.int64:
            same = same & (claimed.labels == used.labels[place])
        count += not bool(same.any())
    return count


def _moved(used: Batch, claimed: Batch, unwanted: Tensor) -> float:
    if claimed.images.shape != used.images.shape:
        return float("nan")
    return float((claimed.images.double() - used.images.double())[unwanted].square().mean().sqrt())


def _reference(images: Images) -> Batch:
    chosen = torch.arange(min(REFERENCE, len(images.labels)))
    return Batch(images=images.batch(chosen), labels=images.labels[chosen])
