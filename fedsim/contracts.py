"""What fedsim asks of every client, audit, forgery and engine; `fedsim.testing` has these and all others."""

import copy
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.api.choose import dataset
from fedsim.api.choose import model as model_by_name
from fedsim.attacks.integrity.spoofing.free_rider import FreeRider
from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.core.challenges import Challenge, challenge_on
from fedsim.core.federation import Federation
from fedsim.core.interfaces import Audit, Behaviour, Forgery, Submission
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, Claim, LocalWork, batch_digest, batch_gradient, weights_of
from fedsim.core.types import Verdict, Weights, reply_problem
from fedsim.data.images import Dataset
from fedsim.defenses.integrity.proof.domain import batch_problem, examples_of, images_problem
from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
from fedsim.flower.engines.engine import Engine
from fedsim.flower.local_round import local_work
from fedsim.flower.setups import ClientSetup
from fedsim.lab.experiment import run
from fedsim.storage.runfolder import RunFolder

STEPS, BATCH, CLIENTS = 4, 6, 2  # of the small local work
# Clients remember what sparsify left out: their state has to come through every engine's processes.
FEDERATION = (
    *("data=synthetic", "data.shape=[1,8,8]", "data.num_classes=4", "data.train_size=160"),
    *("data.test_size=40", "model=softmax", "metric=[leacc,lnacc,irec]", "name=contract"),
    *("federation=fedavg", "federation.batch_size=6", "federation.clients=2", "federation.rounds=2"),
    *("defense=[noise,sparsify]", "defense.sparsify.error_feedback=true"),
)


@functools.cache  # Hydra takes a second
def small_data() -> Dataset:
    """Return the small images that parts are checked on: one channel, 8 x 8, four classes."""
    return dataset("synthetic", shape=[1, 8, 8], num_classes=4)


def small_model(name: str = "mlp", **settings: Any) -> nn.Module:
    """Return a model for small_data; an mlp of 40 units unless it is told."""
    usual = {"width": 40} if name == "mlp" else {}
    return copy.deepcopy(_model(name, *(usual | settings).items()))


@functools.cache
def _model(name: str, *settings: tuple[str, Any]) -> nn.Module:
    return model_by_name(name, task=small_data().task, **dict(settings))


def small_work(client: int = 0, *, every: int | None = 1) -> LocalWork:
    """Return what a client of a small audited federation is asked to do in its first round."""
    data, model = small_data(), small_model()
    setup = ClientSetup(
        model=model,
        train=data.train,
        shares=tuple(torch.arange(200 * place, 200 * (place + 1)) for place in range(CLIENTS)),
        federation=Federation(clients=CLIENTS, mode="fedavg", local_steps=STEPS, batch_size=BATCH),
        defenses=(),
        behaviours=(),
        audit=None if every is None else ProofOfLearning(every=every),
        task=data.task,
        seed=0,
        device="cpu",
        threads=1,
    )
    return local_work(setup, weights_of(model), 1, client)


def check_client(client: Behaviour) -> None:
    """Have a client do a round's work: repeatable, well formed, and not what an honest one claims."""
    expect(isinstance(client, Behaviour), f"a Behaviour, got {type(client).__name__}")
    work = small_work()
    before = copies(work.sent)
    done, again = client.train(work), client.train(small_work())
    expect(same_weights(before, work.sent), "the weights sent to stay as they were")
    expect(_claims_alike(done, again), "the same claim of the same work")
    problem = reply_problem(done.update, work.sent)
    expect(problem is None, f"an update of the form of what was sent, got one with {problem}")
    expect(len(done.batches) == STEPS, f"batches of {STEPS} steps, got {len(done.batches)}")
    if (trace := done.trace) is None:
        raise AssertionError("expected a trace where one is asked for")
    digests = tuple(batch_digest(batch) for batch in done.batches)
    expect(trace.digests == digests, "a trace of the batches that it would show")
    expect(len(trace.checkpoints) == STEPS + 1, f"{STEPS + 1} checkpoints, got {len(trace.checkpoints)}")
    end = {name: tensor + work.sent[name] for name, tensor in done.update.items()}
    near = all(torch.allclose(end[name], tensor, atol=1e-5) for name, tensor in trace.checkpoints[-1].items())
    expect(near, "a trace that ends where the update leads")
    untraced = client.train(small_work(every=None))
    expect(untraced.trace is None, "no trace where none is asked for")
    first, later = client.send(b"proof", b""), client.send(b"proof", b"older")
    expect(first == b"proof", "its own proof in its first round: there is no older one")
    honest = Behaviour().train(small_work())
    cheats = not _claims_alike(done, honest) or later != b"proof"
    expect(cheats != (type(client) is Behaviour), "a claim or a proof that is not an honest client's")


def _claims_alike(one: Claim, other: Claim) -> bool:
    assert one.trace is not None
    assert other.trace is not None
    return (
        same_weights(one.update, other.update)
        and one.trace.digests == other.trace.digests
        and one.trace.learning_rate == other.trace.learning_rate
        and all(map(same_weights, one.trace.checkpoints, other.trace.checkpoints))
    )


def check_audit(audit: Audit) -> None:
    """Audit an honest client, who is accepted, and replies and proofs that are not its own, which are not."""
    expect(isinstance(audit, Audit), f"an Audit, got {type(audit).__name__}")
    work, other = (small_work(client, every=audit.every) for client in range(CLIENTS))
    claim, theirs = Behaviour().train(work), Behaviour().train(other)
    proof = audit.prove(claim, seed=0, round=1, client=0)

    def verdict(
        sealed: bytes, said: Claim, shown: Sequence[Batch] | None = None, owner: LocalWork = work
    ) -> Verdict:
        return _verdict(audit, work, owner, sealed, said.update, said.batches if shown is None else shown)

    accepted = verdict(proof, claim)
    expect(accepted.accepted, f"an honest client to be accepted, got {accepted.check}: {accepted.reason}")
    expect(accepted.recomputed > 0, "that some of its steps are done again")
    twice = dataclasses.replace(verdict(proof, claim), seconds=accepted.seconds)
    expect(twice == accepted, "the same verdict of the same reply")
    rider = FreeRider().train(small_work(every=audit.every))
    idle = audit.prove(rider, seed=0, round=1, client=0)
    turned = [Batch(images=batch.images.flip(0), labels=batch.labels) for batch in claim.batches]
    for what, judged in {
        "another client's update with its proof": verdict(proof, theirs, claim.batches),
        "another client's proof with its update": verdict(
            audit.prove(theirs, seed=0, round=1, client=1), claim
        ),
        "a proof of another round": verdict(audit.prove(claim, seed=0, round=2, client=0), claim),
        "the trace of one who did not train": verdict(idle, rider),
        "batches that are not in the proof": verdict(proof, claim, turned),
        "no batches": verdict(proof, claim, ()),
        "no proof": verdict(b"", claim),
        "half a proof": verdict(proof[: len(proof) // 2], claim),
    }.items():
        expect(not judged.accepted, f"that {what} is rejected")
        expect(bool(judged.check and judged.reason), f"a check and a reason where {what} is rejected")
    if audit.commits:
        expect(not verdict(proof, claim, owner=other).accepted, "that data not committed to is rejected")


def _verdict(
    audit: Audit,
    work: LocalWork,
    owner: LocalWork,
    proof: bytes,
    update: Weights,
    batches: Sequence[Batch],
) -> Verdict:
    """Have a reply judged; owner: whose data was committed to."""
    committed = audit.commit(owner.batch(owner.owned)) if audit.commits else None
    order = work.own_places()

    def reveal(steps: Sequence[int]) -> list[Batch]:
        shown = [batches[step] for step in steps] if batches else []
        if committed is None:
            return shown
        return [committed.show(batch, order[step]) for step, batch in zip(steps, shown, strict=False)]

    return audit.examine(
        Submission(
            round=work.round,
            client=work.client,
            proof=proof,
            model=copy.deepcopy(work.model),
            sent=work.sent,
            received=update,
            num_examples=STEPS * BATCH,
            task=work.task,
            steps=work.steps,
            batch_size=BATCH,
            learning_rate=work.learning_rate,
            reveal=reveal,
            seed=0,
            commitment=None if committed is None else committed.commitment,
            order=order,
        )
    )


def small_challenge(size: int = 60, unwanted: int = 3, model: nn.Module | None = None) -> Challenge:
    """Return a step of softmax regression on exact grey levels, of whose batch some examples must go."""
    data = small_data()

    def examples(indices: Tensor) -> Batch:
        levels = torch.round(data.train.batch(indices) * 255).double()
        return Batch(images=levels / 255, labels=data.train.labels[indices])

    order = torch.randperm(400, generator=generator(0, "challenge"))
    return challenge_on(
        order[:size],
        model=(small_model("softmax") if model is None else model).double(),
        unwanted=torch.arange(unwanted),
        task=data.task,
        owned=order,
        examples=examples,
        chance=generator(0, "forge"),
    )


def check_forgery(forgery: Forgery, challenge: Callable[[], Challenge] = small_challenge) -> None:
    """Forge a batch twice: alike, in its domain, without what is unwanted, nearer than batches by chance.

    challenge: a maker of one that it can meet; see small_challenge.
    """
    expect(isinstance(forgery, Forgery), f"a Forgery, got {type(forgery).__name__}")
    asked, twin = challenge(), challenge()
    used, claimed = _forged(forgery, asked)
    _, again = _forged(forgery, twin)
    alike = torch.equal(claimed.images, again.images) and torch.equal(claimed.labels, again.labels)
    expect(alike, "the same batch of the same challenge")
    size, kind = len(asked.batch.labels), used.images.dtype
    if forgery.classes:
        problem = batch_problem(claimed, size, asked.task, forgery.pixels, kind)
    else:
        problem = images_problem(claimed, size, asked.task, kind)
        shares = tuple(claimed.labels.shape) == (size, asked.task.num_classes)
        expect(shares, f"shares of {asked.task.num_classes} classes, got {tuple(claimed.labels.shape)}")
    expect(problem is None, f"a batch in its domain ({forgery.pixels}), got: {problem}")
    own, shown = examples_of(used), set(examples_of(claimed))
    left = [place for place in asked.unwanted.tolist() if own[place] in shown]
    expect(not left, f"a batch without the unwanted examples, got those at {left}")
    wanted = _gradient(asked, used)
    others = [asked.owned[torch.randperm(len(asked.owned), generator=generator(n))] for n in range(9)]
    gaps = sorted(float((_gradient(asked, _swapped(asked, used, drawn)) - wanted).norm()) for drawn in others)
    gap = float((_gradient(asked, claimed) - wanted).norm())
    expect(gap <= gaps[4], f"a gradient nearer than by chance ({gaps[4]:.3g}), got a gap of {gap:.3g}")


def _forged(forgery: Forgery, asked: Challenge) -> tuple[Batch, Batch]:
    used = forgery.compose(asked)
    return used, forgery.forge(dataclasses.replace(asked, batch=used))


def _swapped(asked: Challenge, used: Batch, drawn: Tensor) -> Batch:
    """Put examples by chance in the place of the unwanted ones."""
    others = asked.examples(drawn[: len(asked.unwanted)])
    images, labels = used.images.clone(), used.labels.clone()
    images[asked.unwanted], labels[asked.unwanted] = others.images.to(images), others.labels
    return Batch(images=images, labels=labels)


def _gradient(asked: Challenge, batch: Batch) -> Tensor:
    gradient, _ = batch_gradient(asked.model, batch.images, batch.labels)
    return torch.cat([tensor.flatten() for tensor in gradient.values()])


def check_engine(engine: Engine, *overrides: str) -> None:
    """Play a small federation on an engine and in this process: the same bits. overrides: of its config."""
    expect(isinstance(engine, Engine), f"an Engine, got {type(engine).__name__}")
    experiment = build.experiment(compose([*FEDERATION, *overrides]))
    with tempfile.TemporaryDirectory() as name:
        there = run(dataclasses.replace(experiment, engine=engine), Path(name) / "there")
        here = run(build.experiment(compose([*FEDERATION, *overrides])), Path(name) / "here")
        expect_same_run(here, there)


def expect_same_run(left: RunFolder, right: RunFolder) -> None:
    """Compare all that was sent, received, scored and tested in two runs, bit for bit."""
    pairs = list(zip(left.observations(), right.observations(), strict=True))
    expect(bool(pairs), "observations")
    for a, b in pairs:
        told = [(seen.round, seen.client, seen.num_examples) for seen in (a, b)]
        expect(told[0] == told[1], f"the same replies in order, got {told[0]} and {told[1]}")
        alike = same_weights(a.sent, b.sent) and same_weights(a.received, b.received)
        expect(alike, f"the same bits in round {a.round} of client {a.client}")
    expect(left.scores() == right.scores() != [], "the same scores, and some")
    tested = [[(r.round, r.accuracy, r.loss) for r in folder.history()] for folder in (left, right)]
    expect(tested[0] == tested[1] != [], "the same accuracies, and some")


def copies(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that nobody else holds."""
    return {name: tensor.clone() for name, tensor in weights.items()}


def same_weights(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Say whether two sets of tensors have the same names and bits."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def expect(holds: bool, expected: str) -> None:
    """Raise an AssertionError that says what was expected, unless it holds."""
    if not holds:
        raise AssertionError(f"expected {expected}")
