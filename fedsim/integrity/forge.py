"""The forging game: a recorded step, a batch claimed in place of the one it was taken on, a verdict.

Paper: Suliman et al., Towards a Re-evaluation of Data Forging Attacks in Practice (2024), algorithm 1.
"""

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.core import progress
from fedsim.core.errors import FedsimError, in_words
from fedsim.core.interfaces import Audit, CentralTraining, Challenge, Forgery, RecordedStep, StepVerdict
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, arithmetic, exact_levels, load_weights, sgd_step, weights_of
from fedsim.core.types import Weights
from fedsim.data.images import Images

REFERENCE = 1000  # test images that a verifier compares with


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the verifier asks for."""

    challenges: int = 5  # steps of the trace, drawn at random
    at: tuple[int, ...] | None = None  # or these
    batches: int | None = None  # at each of them the same batches, so many; None: the trace's own
    examples: tuple[int, ...] | None = None  # of the training data: every step that used one, without them
    fractions: tuple[float, ...] = (1.0,)  # of a batch that must not appear; 0: any other batch will do
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
    def gone(self) -> int:
        """How many of the unwanted examples do not appear in the claimed batch."""
        return 0 if self.verdict is None else self.verdict.gone

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
        chosen = list(dict.fromkeys(rules.at))
        if max(chosen) >= steps:
            raise FedsimError(f"forge.at: expected steps below proof.steps={steps}, got {max(chosen)}")
    if rules.batches is None:
        return [(step, step) for step in chosen]
    if rules.batches > steps:
        raise FedsimError(f"forge.batches: expected at most proof.steps={steps}, got {rules.batches}")
    return [(step, number) for step in chosen for number in range(rules.batches)]


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
        images = exact_levels(images) if kind == torch.float64 else images
        return Batch(images=images, labels=labels)

    everything = torch.arange(len(training.train.labels))
    drawn = torch.randperm(len(own), generator=generator(training.seed, "unwanted", number))
    number_unwanted = max(1, round(fraction * len(own))) if fraction else 0
    unwanted = drawn[:number_unwanted].sort().values
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
    with torch.no_grad():
        logits = challenge.model(original.images)
        losses = functional.cross_entropy(logits, original.labels, reduction="none")
    started = time.perf_counter()
    used, claimed, reason = original, None, ""
    verdict = None
    try:
        composed = forgery.compose(_own_copy(challenge))
        used = original if _equal(composed, original) else composed
        if used is not original and game.rules.examples is not None:
            raise FedsimError("a batch that was planned is not the one on record")
        load_weights(challenge.model, before)
        with arithmetic(precision):
            sgd_step(challenge.model, used, rate)
        recorded = RecordedStep(
            model=challenge.model,
            before=before,
            after=weights_of(challenge.model),
            batch=used,
            unwanted=challenge.unwanted,
            task=challenge.task,
            learning_rate=rate,
            precision=precision,
            threads=game.training.threads,
        )
        load_weights(challenge.model, before)
        claimed = forgery.forge(_own_copy(replace(challenge, batch=used)))
    except Exception as error:  # one that cannot, or breaks, has lost this move and no more
        reason = in_words(error)
    seconds = time.perf_counter() - started
    if claimed is not None:
        verdict = game.audit.judge_step(recorded, claimed, game.rules.delta)
        reason = verdict.reason
    fitting = claimed is not None and claimed.images.shape == used.images.shape
    shown = claimed if claimed is not None and fitting else original
    places = challenge.unwanted if len(challenge.unwanted) else torch.arange(len(original.labels))
    return Move(
        game=game.name,
        forgery=name,
        step=step,
        number=number,
        unwanted=len(challenge.unwanted),
        size=len(original.labels),
        planned=used is not original,
        verdict=verdict,
        reason=reason,
        loss=float(losses[places].mean()),
        moved=float((shown.images.double() - used.images.double())[places].square().mean().sqrt()),
        seconds=seconds,
        suspicions=game.audit.suspicions(shown, reference),
        honest=game.audit.suspicions(original, reference),
        used=used,
        claimed=shown if fitting else None,
    )


def _own_copy(challenge: Challenge) -> Challenge:
    """Return a challenge that the adversary may do with what it likes: nothing of it is the verifier's."""
    batch = Batch(images=challenge.batch.images.clone(), labels=challenge.batch.labels.clone())
    return replace(challenge, model=copy.deepcopy(challenge.model), batch=batch)


def _equal(one: Batch, other: Batch) -> bool:
    return torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


def _reference(images: Images) -> Batch:
    chosen = torch.arange(min(REFERENCE, len(images.labels)))
    return Batch(images=images.batch(chosen), labels=images.labels[chosen])
