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
from fedsim.core.challenges import Challenge, challenge_on
from fedsim.core.errors import FedsimError, in_words
from fedsim.core.interfaces import Forgery
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, arithmetic, exact_levels, load_weights, sgd_step, weights_of
from fedsim.core.types import Weights
from fedsim.data.form import ANY_FORM, Form
from fedsim.data.images import Images
from fedsim.defenses.integrity.proof.suspicion import suspicions
from fedsim.integrity.judge import Demands, RecordedStep, StepVerdict, judge_step
from fedsim.integrity.training import CentralTraining, batch_at, central_indices, weights_before
from fedsim.storage.games import HONEST, MoveRow

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
    calibration: str = (
        "reference"  # delta is measured on images of the verifier's own, or on the batch itself
    )
    every: int = 1  # steps until weights are on record again: the others of them are done as they were
    distance: str = "off"  # by what claimed images must keep away from unwanted ones: l2, ssim, embedding
    least: float = 0.0  # how far


@dataclass(frozen=True, kw_only=True, eq=False)
class Game:
    """Everything that a game needs."""

    name: str  # what distinguishes it from others beside it
    training: CentralTraining
    domain: str  # where the pixels of a claimed batch must lie
    form: Form = ANY_FORM  # rules of the data set beside
    forgeries: Mapping[str, Forgery]
    reference: Images  # data of the same kind, not the prover's
    rules: Rules


@dataclass(frozen=True, kw_only=True, eq=False)
class Move:
    """One challenge, its answer, and what came of it."""

    row: MoveRow
    used: Batch  # that the step was taken on
    claimed: Batch | None  # None: nothing that has the form of a batch


def play(game: Game) -> Iterator[Move]:
    """Let the verifier train, then answer every challenge with every forgery."""
    indices = [central_indices(game.training, step) for step in range(game.training.steps)]
    places = _places(game, indices)
    with arithmetic(game.rules.precision):
        weights = weights_before(game.training, {step for step, _ in places})
    reference = _reference(game.reference)
    fractions = game.rules.fractions if game.rules.examples is None else (1.0,)  # it is said who must go
    todo = [(step, number, share) for step, number in places for share in fractions]
    with progress.bar("forging", len(todo) * len(game.forgeries)) as advance:
        for count, (step, number, share) in enumerate(todo):
            for place, (name, forgery) in enumerate(game.forgeries.items()):
                advance(count * len(game.forgeries) + place, f"{name}, step {step}")
                challenge = _challenge(game, weights[step], indices[number], step, number, share, name)
                # The last weights are always on record: an interval ends with the training at the latest.
                following = tuple(map(challenge.examples, indices[step + 1 : step + game.rules.every]))
                yield _move(game, challenge, reference, following, step, number, name, forgery)


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
        batch = batch_at(training, indices)
        return replace(batch, images=exact_levels(batch.images)) if kind == torch.float64 else batch

    everything = torch.arange(len(training.train.labels))
    unwanted: Tensor | float = fraction
    if game.rules.examples is not None:
        denied = torch.tensor(game.rules.examples)
        unwanted = torch.isin(own, denied).nonzero().flatten()
        everything = everything[~torch.isin(everything, denied)]
    challenge = challenge_on(
        own,
        model=model,
        unwanted=unwanted,
        task=training.task,
        owned=everything,
        examples=examples,
        chance=generator(training.seed, "unwanted", number),
        learning_rate=training.learning_rate,
    )
    return replace(challenge, generator=generator(training.seed, "forgery", name, step, number))


def _move(
    game: Game,
    challenge: Challenge,
    reference: Batch,
    following: tuple[Batch, ...],
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
    verdict: StepVerdict | None = None
    try:
        if not (forgery.tokens or original.images.is_floating_point()):
            raise FedsimError("a forgery of pixels, and these are tokens. Remedy: greedy, kong or nearest.")
        composed = forgery.compose(_own_copy(challenge))
        used = original if _equal(composed, original) else composed
        if used is not original and game.rules.examples is not None:
            raise FedsimError("a batch that was planned is not the one on record")
        with arithmetic(precision):
            for one in (used, *following):
                sgd_step(challenge.model, one, rate)
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
            following=following,
            calibration=_calibration(game, reference, used),
        )
        load_weights(challenge.model, before)
        claimed = forgery.forge(_own_copy(replace(challenge, batch=used)))
    except Exception as error:  # one that cannot, or breaks, has lost this move and no more
        reason = in_words(error)
    seconds = time.perf_counter() - started
    if claimed is not None:
        verdict = judge_step(recorded, claimed, _demands(game))
        reason = verdict.reason
    fitting = claimed is not None and claimed.images.shape == used.images.shape
    shown = claimed if claimed is not None and fitting else original
    places = challenge.unwanted if len(challenge.unwanted) else torch.arange(len(original.labels))
    row = MoveRow(
        game=game.name,
        forgery=name,
        step=step,
        batch=number,
        unwanted=len(challenge.unwanted),
        size=len(original.labels),
        gone=0 if verdict is None else verdict.gone,
        planned=used is not original,
        accepted=verdict is not None and verdict.accepted,
        check="forgery" if verdict is None else verdict.check,
        domain="" if verdict is None else verdict.domain,
        error=None if verdict is None else verdict.error,
        benign=None if verdict is None else verdict.benign,
        delta=None if verdict is None else verdict.delta,
        loss=float(losses[places].mean()),
        once=verdict is not None and verdict.once,
        twice=verdict is not None and verdict.twice,
        twin=verdict is not None and verdict.twin,
        near_l2=None if verdict is None else verdict.near["l2"],
        near_ssim=None if verdict is None else verdict.near["ssim"],
        near_embedding=None if verdict is None else verdict.near["embedding"],
        moved=_moved(shown.images[places], used.images[places]),
        seconds=seconds,
        claimed=fitting,
        **_columns("", suspicions(shown, reference)),
        **_columns(HONEST, suspicions(original, reference)),
        reason=reason,
    )
    return Move(row=row, used=used, claimed=shown if fitting else None)


def _moved(claimed: Tensor, used: Tensor) -> float | None:
    """Return the root mean square of what was changed; tokens have no distance."""
    if not used.is_floating_point():
        return None
    return float((claimed.double() - used.double()).square().mean().sqrt())


def _demands(game: Game) -> Demands:
    rules = game.rules
    return Demands(
        domain=game.domain, form=game.form, delta=rules.delta, distance=rules.distance, least=rules.least
    )


def _calibration(game: Game, reference: Batch, used: Batch) -> Batch | None:
    """Return as many images as a batch has, that the verifier has himself; None: he goes by the batch."""
    if game.rules.calibration == "own":
        return None
    chosen = torch.arange(len(used.labels)) % len(reference.labels)
    images = reference.images[chosen]
    kind = used.images.dtype
    return Batch(
        images=exact_levels(images) if kind == torch.float64 else images, labels=reference.labels[chosen]
    )


def _columns(start: str, statistics: Mapping[str, float]) -> dict[str, float]:
    return {start + name.replace(" ", "_"): value for name, value in statistics.items()}


def _own_copy(challenge: Challenge) -> Challenge:
    """Return a challenge that the adversary may do with what it likes: nothing of it is the verifier's."""
    batch = Batch(images=challenge.batch.images.clone(), labels=challenge.batch.labels.clone())
    return replace(challenge, model=copy.deepcopy(challenge.model), batch=batch)


def _equal(one: Batch, other: Batch) -> bool:
    return torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


def _reference(images: Images) -> Batch:
    chosen = torch.arange(min(REFERENCE, len(images.labels)))
    return Batch(images=images.batch(chosen), labels=images.labels[chosen])
