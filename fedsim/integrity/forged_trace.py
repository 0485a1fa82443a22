"""A whole trace in which unwanted examples do not appear: a sealed proof, judged from its files alone.

What a membership or unlearning claim comes to: every step of the training is done again on the batch that is
claimed for it. Judging needs the folder, the model's code and the data set's rules, no training example.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsim.core import progress
from fedsim.core.errors import FedsimError
from fedsim.core.training import Batch, Trace, batch_digest, load_weights, tensors_digest, weights_of
from fedsim.core.types import Weights
from fedsim.data.form import ANY_FORM, Form
from fedsim.defenses.integrity.proof.checkpoints import Malformed
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.domain import batch_problem, examples_of
from fedsim.defenses.integrity.proof.initialisation import initial_problem
from fedsim.defenses.integrity.proof.leaning import Leaning
from fedsim.defenses.integrity.proof.proof import from_bytes, proof_of, to_bytes
from fedsim.defenses.integrity.proof.reproduction import SAFETY, Variation, rounded, stand_ins, variations
from fedsim.defenses.integrity.proof.seal import BadSignature, Unreadable, seal, unseal
from fedsim.integrity.judge import last_places
from fedsim.integrity.keys import prover_keys, verifier_keys
from fedsim.integrity.training import CentralTraining, batch_at, train_centrally
from fedsim.storage.files import as_file_name
from fedsim.storage.folder import Storage

FOLDER = "traces/"
CALIBRATED = 12  # intervals that honest errors are measured on
ROUNDINGS = 16  # other ways to round an interval that ends too far away
OFTEN = 0.25  # of the intervals: how many may need one; up to .08 were seen, by other kernels
FEW = 3  # of a short trace
CHANCE = 2.0  # errors of intervals, in units of the honest error that was measured: 1.2 was seen


@dataclass(frozen=True, kw_only=True)
class TraceVerdict:
    """What a whole trace comes to on one machine, or a stand-in for it."""

    forgery: str
    machine: str
    steps: int
    largest: float  # error of an interval, l2
    delta: float
    leaps: int  # intervals that were rounded otherwise
    model: str  # digest of the last weights: those of the model in question?
    problem: str  # empty: it passes

    def __str__(self) -> str:
        verdict = f"rejected: {self.problem}" if self.problem else "passes as one that never used them"
        found = f"{self.steps} steps done again, largest error {self.largest:.3g} of at most {self.delta:.3g}"
        found += f", {self.leaps} intervals rounded otherwise" if self.leaps else ""
        model = f", model {self.model[:12]}" if self.model else ""
        return f"{self.forgery}, {self.machine}: {found}{model}: {verdict}"


def write_trace(
    storage: Storage,
    name: str,
    training: CentralTraining,
    forged: Mapping[int, Batch],
    examples: Sequence[int],
    every: int = 1,
) -> None:
    """Write the training's weights, other batches for some steps, all batches, and what must not appear."""
    write_claims(storage, name, training, train_centrally(training, every), forged, examples)


def write_claims(
    storage: Storage,
    name: str,
    training: CentralTraining,
    trace: Trace,
    forged: Mapping[int, Batch],
    examples: Sequence[int],
) -> None:
    """Write a trace whose weights may be made up, too."""
    digests, levels, labels = list(trace.digests), list[Tensor](), list[Tensor]()
    for step, indices in enumerate(trace.indices):
        batch = forged.get(step) or batch_at(training, torch.tensor(indices))
        if not torch.equal(_pixels(_levels(batch.images)), batch.images):
            raise FedsimError(f"forge: step {step}: expected whole grey levels to write a trace of")
        digests[step] = batch_digest(_batch(_levels(batch.images), batch.labels))
        levels.append(_levels(batch.images))
        labels.append(batch.labels)
    # Indices would name the very examples that are denied: a trace of batches has none to show.
    own = replace(trace, digests=tuple(digests), indices=tuple(tuple(range(len(s))) for s in trace.indices))
    unwanted = batch_at(training, torch.tensor(list(examples)))
    signer, reader = prover_keys(training.keys, training.seed)
    subject = f"{training.steps} steps on batches of {training.batch_size}, claimed"
    storage.write(
        proof_file(name), seal(to_bytes(proof_of(own, subject=subject, initial="random")), signer, reader)
    )
    tensors = {"levels": torch.stack(levels), "labels": torch.stack(labels)}
    tensors |= {"unwanted": _levels(unwanted.images), "unwanted_labels": unwanted.labels}
    storage.write_tensors(batches_file(name), tensors)


def proof_file(name: str) -> str:
    """Return where the sealed proof of a forgery's trace is."""
    return f"{FOLDER}{as_file_name(name)}.proof"


def batches_file(name: str) -> str:
    """Return where all batches of a forgery's trace are."""
    return f"{FOLDER}{as_file_name(name)}.safetensors"


def judge_traces(
    storage: Storage,
    training: CentralTraining,
    domain: str = "uint8",
    form: Form = ANY_FORM,
    every: int = 1,
) -> Iterator[TraceVerdict]:
    """Judge every trace of a folder, by other threads and kernels too; no example of the training is used."""
    names = [name.removeprefix(FOLDER).removesuffix(".proof") for name in storage.names(FOLDER)]
    names = [name for name in names if storage.has(proof_file(name))]
    if not names:
        raise FedsimError(
            f"{storage.root}: no forged trace is here. Remedy: fedsim forge forge.examples=[...], with a "
            "forgery that is accepted at every step that used them."
        )
    for name in names:
        for machine in stand_ins(training.threads):
            yield _judged(storage, name, training, machine, domain, form, every)


def _judged(
    storage: Storage,
    name: str,
    training: CentralTraining,
    machine: Variation,
    domain: str,
    form: Form,
    every: int,
) -> TraceVerdict:
    largest, delta, steps, model, leaps = 0.0, 0.0, 0, "", 0
    try:
        trace, batches, unwanted = _opened(storage, name, training)
        _check_data(trace, batches, unwanted, training, domain, form)
        if trace.every != every:
            raise FedsimError(f"expected weights every {every} steps (forge.every), got {trace.every}")
        model = tensors_digest(trace.checkpoints[-1])
        if problem := initial_problem(trace.checkpoints[0], lambda n: weights_of(training.fresh(n + 1))):
            raise FedsimError(f"not a random initialisation: {problem}")
        delta, number = trace_delta(trace, training), len(trace.checkpoints) - 1
        leaning, ways = Leaning(), _ways(trace)
        with machine.around(), progress.bar("intervals", number) as advance:
            for place in range(number):
                first, end, error = _nearest_end(trace, batches, training, place, delta, ways)
                largest = max(largest, error)
                leaps += end is not first
                leaning.add(end, trace.checkpoints[place + 1])
                steps += len(trace.span(place))
                advance(place + 1)
        by_chance = CHANCE * delta / SAFETY * math.sqrt(number)  # the verifier's own: a cheat cannot raise it
        if not largest <= delta:
            problem = f"an interval ends {largest:.3g} from what was recorded"
        elif leaps > (most := max(FEW, OFTEN * number)):  # who makes batches can put units on edges
            problem = f"{leaps} of {number} intervals need another rounding, at most {most:.3g} by chance"
        else:
            problem = leaning.problem(by_chance)
    except (FedsimError, Malformed, BadSignature, Unreadable) as error:
        problem = str(error)
    return TraceVerdict(
        forgery=name,
        machine=machine.name,
        steps=steps,
        largest=largest,
        delta=delta,
        leaps=leaps,
        model=model,
        problem=problem,
    )


def _opened(storage: Storage, name: str, training: CentralTraining) -> tuple[Trace, list[Batch], Batch]:
    """Read a trace's proof, its batches, and the examples that it is said not to have used."""
    sealed, stored = storage.read(proof_file(name)), storage.read_tensors(batches_file(name))
    if sealed is None or stored is None:
        raise FedsimError(f"{name}: expected a proof and its batches in {FOLDER}, got one of the two")
    trace = from_bytes(unseal(sealed, *verifier_keys(training.keys, training.seed)).payload).trace
    tensors, _ = stored
    if missing := {"levels", "labels", "unwanted", "unwanted_labels"} - tensors.keys():
        raise FedsimError(f"{name}: expected the tensors {', '.join(sorted(missing))} beside the batches")
    pairs = zip(tensors["levels"], tensors["labels"], strict=True)
    batches = [_batch(levels, labels) for levels, labels in pairs]
    return trace, batches, _batch(tensors["unwanted"], tensors["unwanted_labels"])


def _check_data(
    trace: Trace,
    batches: Sequence[Batch],
    unwanted: Batch,
    training: CentralTraining,
    domain: str,
    form: Form,
) -> None:
    """Refuse batches that are not those of the proof, no data, or hold an unwanted example."""
    if len(batches) != len(trace.digests):
        raise FedsimError(f"{len(trace.digests)} steps, {len(batches)} batches")
    if trace.learning_rate != training.learning_rate or len(batches) != training.steps:
        raise FedsimError("expected the steps and the learning rate of config.yaml")
    denied = set(examples_of(unwanted))
    for step, batch in enumerate(batches):
        if batch_digest(batch) != trace.digests[step]:
            raise FedsimError(f"step {step}: the batch shown is not the one in the proof")
        if problem := batch_problem(batch, len(trace.indices[step]), training.task, domain):
            raise FedsimError(f"step {step}: {problem}")
        if domain == "uint8" and (problem := form.problem(batch.images)):
            raise FedsimError(f"step {step}: {problem}")
        if denied & set(examples_of(batch)):
            raise FedsimError(f"step {step}: an unwanted example is there")


def trace_delta(trace: Trace, training: CentralTraining) -> float:
    """Return ten times the largest honest error, on some intervals, of test images in place of the batches.

    Who made the trace made its batches, too, and could choose some that round badly. Of an interval the
    median over ways to do it again, each to its nearest other: an interval in which a unit changes sides has
    ways that lie far apart, and would excuse a forgery of that size at every step.
    """
    number = len(trace.checkpoints) - 1
    ways = [way for way in variations(training.threads) if way.exact] + [rounded(0), rounded(1)]
    honest = 0.0
    for place in range(0, number, max(1, number // CALIBRATED)):
        batches = {step: _reference(training, step, len(trace.indices[step])) for step in trace.span(place)}
        ends = [_end(trace, batches, training, place, way) for way in ways]
        apart = torch.tensor([[distance("l2", one, other) for other in ends] for one in ends])
        apart[apart == 0] = torch.inf  # the same way twice says nothing
        nearest = apart.min(dim=1).values
        finite = nearest[nearest.isfinite()]
        honest = max(honest, float(finite.median())) if len(finite) else honest
    return max(SAFETY * honest, last_places(trace.checkpoints[-1]))


def _reference(training: CentralTraining, step: int, size: int) -> Batch:
    """Return as many test images as a step has examples, others for each step as far as there are."""
    assert training.test is not None  # of every data set
    chosen = (step * size + torch.arange(size)) % len(training.test.labels)
    return Batch(images=training.test.batch(chosen), labels=training.test.labels[chosen])


def _ways(trace: Trace) -> list[Variation]:
    """Return ways to round, drawn by a whole trace: who makes it cannot know them and choose weights."""
    drawn = "".join([*trace.digests, *map(tensors_digest, trace.checkpoints)])
    return [Variation(name="the same"), *(rounded(number, drawn) for number in range(ROUNDINGS))]


def _nearest_end(
    trace: Trace,
    batches: Sequence[Batch],
    training: CentralTraining,
    place: int,
    limit: float,
    ways: Sequence[Variation],
) -> tuple[Weights, Weights, float]:
    """Return the end of an interval, and the nearest if that is too far off: a unit may be on the edge."""
    ends, nearest, error = list[Weights](), trace.checkpoints[place], math.inf
    for way in ways:
        ends.append(_end(trace, dict(enumerate(batches)), training, place, way))
        if (found := distance("l2", ends[-1], trace.checkpoints[place + 1])) < error:
            nearest, error = ends[-1], found
        if error <= limit:
            break
    return ends[0], nearest, error


def _end(
    trace: Trace, batches: Mapping[int, Batch], training: CentralTraining, place: int, variation: Variation
) -> Weights:
    """Return where batches lead from the first weights of an interval."""
    model = training.fresh(0)
    load_weights(model, trace.checkpoints[place])
    with variation.around():
        for step in trace.span(place):
            variation.step(model, batches[step], trace.learning_rate)
    return weights_of(model)


def _levels(images: Tensor) -> Tensor:
    """Return grey levels as bytes; tokens as they are."""
    if not images.is_floating_point():
        return images
    return torch.round(images * 255).clamp(0, 255).to(torch.uint8)


def _pixels(levels: Tensor) -> Tensor:
    return levels.to(torch.float32).div_(255) if levels.dtype == torch.uint8 else levels


def _batch(levels: Tensor, labels: Tensor) -> Batch:
    return Batch(images=_pixels(levels), labels=labels)
