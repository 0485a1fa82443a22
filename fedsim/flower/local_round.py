"""A client's round without a word of Flower: local steps as the client behaves, defenses on what leaves."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Behaviour, Committed, LocalStep
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, Claim, LocalWork
from fedsim.core.types import Truth, Weights, form_problem
from fedsim.data.batches import batch_indices
from fedsim.flower.setups import ClientSetup
from fedsim.flower.wire import FLOAT, dense_bytes, wire_bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalRound:
    """What came of a client's local steps."""

    claim: Claim
    disclosed: Mapping[str, int | float | list[int]]  # to the server
    truth: Truth | None  # the private batch, for the evaluator alone; None: this round is not attacked


def local_round(setup: ClientSetup, sent: Weights, round: int, client: int) -> LocalRound:
    """Let a client do its local steps, as it behaves."""
    work, behaviour = local_work(setup, sent, round, client), setup.behaviour(client)
    claim = behaviour.train(work)
    truth = None
    if setup.federation.attacks(round, client):
        # What a cheat shows need not be what it has. Others show what they have: no need to read it again.
        own = claim.batches if type(behaviour) is Behaviour else work.own_batches()
        images = torch.cat([batch.images for batch in own]).cpu()
        labels = torch.cat([batch.labels for batch in own]).cpu()
        truth = Truth(round=round, client=client, images=images, labels=labels)
    return LocalRound(claim=claim, disclosed=_disclosed(setup, claim), truth=truth)


def inspected(setup: ClientSetup, sent: Weights, before: Weights | None) -> None:
    """Let defenses look at what the server sent; a client that does not like it refuses by an error."""
    for defense in setup.defenses:
        defense.on_sent(sent, before, setup.model)


def local_work(setup: ClientSetup, sent: Weights, round: int, client: int) -> LocalWork:
    """Return what a client is asked to do in a round."""
    rules = setup.federation

    def batch(indices: Tensor) -> Batch:
        if not bool((setup.owners[indices] == client).all()):
            raise FedsimError("a client has no images but its own")
        images, labels = setup.train.batch(indices), setup.train.labels[indices]
        return Batch(images=images.to(setup.device), labels=labels.to(setup.device))

    def on_batch(step: int, own: Batch) -> Batch:
        if not setup.defenses:
            return own
        images, labels = own.images.cpu(), own.labels.cpu()  # where the generators are
        for position, defense in enumerate(setup.defenses):
            random = generator(setup.seed, "defense batch", position, round, client, step)
            images, labels = defense.on_batch(images, labels, random)
        if labels.is_floating_point():  # shares of the classes that were there
            labels = functional.pad(labels, (0, setup.task.num_classes - labels.shape[1]))
        return Batch(images=images.to(setup.device), labels=labels.to(setup.device))

    def on_gradient(step: int, gradient: Weights, used: Batch) -> Weights:
        expected = rules.batch_size if rules.sampling == "poisson" else len(used.labels)
        now = LocalStep(model=setup.model, images=used.images, labels=used.labels, expected=expected)
        for position, defense in enumerate(setup.defenses):
            random = generator(setup.seed, "defense gradient", position, round, client, step)
            gradient = defense.on_gradient(gradient, now, random)
        return gradient

    return LocalWork(
        round=round,
        client=client,
        model=setup.model,
        sent=sent,
        steps=rules.local_steps,
        learning_rate=rules.local_lr,
        every=None if setup.audit is None else setup.audit.every,
        indices=lambda step: _step_indices(setup, round, client, step),
        batch=batch,
        task=setup.task,
        owned=setup.shares[client],
        generator=generator(setup.seed, "behaviour", round, client),
        kind=rules.reply_kind,
        on_batch=on_batch,
        on_gradient=on_gradient,
    )


def committed(setup: ClientSetup, client: int) -> Committed:
    """Return a client's commitment to its data: its own, in its order, unless it plans ahead."""
    if client not in setup.committed:
        indices = setup.shares[client]
        own = Batch(images=setup.train.batch(indices), labels=setup.train.labels[indices])
        data = setup.behaviour(client).data(own, setup.task)
        made = None if setup.audit is None else setup.audit.commit(data)
        if made is None:
            raise FedsimError("this federation's audit wants no commitment to data")
        setup.committed[client] = made
    return setup.committed[client]


def _step_indices(setup: ClientSetup, round: int, client: int, step: int) -> Tensor:
    """Return which images a client trains on in a local step of a round."""
    rules = setup.federation
    return batch_indices(
        setup.train.labels,
        setup.shares[client],
        batch_size=rules.batch_size,
        layout=rules.labels,
        replacement=rules.sampling == "with_replacement",
        poisson=rules.sampling == "poisson",
        seed=setup.seed,
        client=client,
        step=(round - 1) * rules.local_steps + step,
    )


def _disclosed(setup: ClientSetup, claim: Claim) -> dict[str, int | float | list[int]]:
    """Return what the federation has a client tell about the batches that it claims."""
    rules, labels = setup.federation, torch.cat([batch.labels for batch in claim.batches])
    known: dict[str, int | float | list[int]] = {
        # How many were drawn is private, too: a client says what was to be expected.
        "num_examples": rules.batch_size * rules.local_steps if rules.sampling == "poisson" else len(labels),
        "class_counts": labels[labels >= 0].bincount(minlength=setup.task.num_classes).tolist(),
    }
    if claim.loss is not None:
        known["loss"] = claim.loss
    if rules.mode == "fedavg":
        known |= {"learning_rate": rules.local_lr, "local_steps": rules.local_steps}
    return {name: known[name] for name in rules.disclose if name in known}


@dataclass(frozen=True, kw_only=True, eq=False)
class Defended:
    """A reply as it leaves the client."""

    reply: Weights
    rests: Mapping[int, Weights]  # what defenses took away and add to the next reply, by their position
    bytes: int  # on the wire


def defended(
    setup: ClientSetup, given: Weights, rests: Mapping[int, Weights], round: int, client: int
) -> Defended:
    """Let the defenses change a reply; rests: what they took away from this client's last one."""
    reply, bits, left = given, FLOAT, dict[int, Weights]()
    for position, defense in enumerate(setup.defenses):
        random = generator(setup.seed, "defense", position, round, client)
        rest = rests.get(position, {})
        whole = {name: tensor + rest[name] for name, tensor in reply.items()} if rest else reply
        reply = defense.on_reply(whole, setup.federation.reply_kind, random)
        if defense.keeps_rest:
            left[position] = {name: tensor - reply[name] for name, tensor in whole.items()}
        bits = bits if defense.bits is None else defense.bits
    if problem := form_problem(reply, given):
        raise FedsimError(f"a defense changed the form of the reply: {problem}")
    masked = any(defense.sums_replies for defense in setup.defenses)  # masks leave no zero to skip
    sparse = any(defense.sparse for defense in setup.defenses)
    masks = any(getattr(defense, "masks", False) for defense in setup.defenses)  # of 8 bytes a number
    size = dense_bytes(reply) * (2 if masks else 1) if masked else wire_bytes(reply, bits, sparse=sparse)
    return Defended(reply=reply, rests=left, bytes=size)
