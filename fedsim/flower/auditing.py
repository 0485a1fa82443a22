"""An audit over Flower: a reply's proof is judged, and the client is asked for batches that it names."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import nn

from fedsim.core.errors import FedsimError
from fedsim.core.federation import Federation
from fedsim.core.interfaces import Audit, Submission
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, Commitment
from fedsim.core.types import Observation, Verdict, Weights
from fedsim.data.batches import natural_places
from fedsim.flower.nodes import addressed_to, failure_of
from fedsim.flower.records import arrays_of, decode
from fedsim.flower.setups import ServerSetup

log = logging.getLogger(__name__)
MOST_EXAMPLES = 10_000_000  # that a client may commit to: the server draws an order of as many
ROOT = re.compile(r"[0-9a-f]{64}")


def hear_commitments(
    setup: ServerSetup, audit: Audit, grid: Grid, node_of: Mapping[int, int], round: int
) -> None:
    """Ask clients that have not committed to their data for it, before they are told anything of a round."""
    node_of = {client: node for client, node in node_of.items() if client not in setup.commitments}
    clients, heard = {node: client for client, node in node_of.items()}, dict[int, Commitment]()
    questions = [
        Message(RecordDict({"commit": ConfigRecord(), "you": addressed_to(client)}), node, MessageType.QUERY)
        for client, node in node_of.items()
    ]
    if not questions:
        return
    for reply in grid.send_and_receive(questions, timeout=setup.federation.timeout):
        client, told = clients.get(reply.metadata.src_node_id), None
        if client is None or reply.has_error():
            continue
        told = reply.content.get("commitment")
        root, examples = (told.get(name) for name in ("root", "examples")) if told else (None, None)
        if not isinstance(root, str) or not ROOT.fullmatch(root):
            continue
        if type(examples) is int and 0 < examples <= MOST_EXAMPLES:
            heard[client] = Commitment(root=root, examples=examples)
    for client, commitment in sorted(heard.items()):
        if audit.keep:
            setup.keep_commitment(round, client, commitment)
        setup.commitments[client] = commitment


def passes(
    setup: ServerSetup, audit: Audit, model: nn.Module, grid: Grid, observation: Observation, reply: Message
) -> bool:
    """Have the audit judge a reply before it counts, and keep its verdict. model: in the clients' mode."""
    round, client = observation.round, observation.client
    proof = reply.content.get("proof")
    came = proof.get("sealed") if isinstance(proof, ConfigRecord) else None
    sealed = came if isinstance(came, bytes) else b""
    if audit.keep:
        setup.keep_proof(round, client, sealed)
    commitment = setup.commitments.get(client)
    if audit.commits and commitment is None:
        reason = "it has not committed to its data"
        verdict = Verdict(round=round, client=client, accepted=False, check="commitment", reason=reason)
    else:
        verdict = _judged(setup, audit, model, grid, observation, reply, sealed)
    setup.keep_verdict(verdict)
    if not verdict.accepted:
        setup.rejections[client] = setup.rejections.get(client, 0) + 1
        log.info("round %d, client %d: rejected: %s", round, client, verdict.reason)
    return verdict.accepted


def _judged(
    setup: ServerSetup,
    audit: Audit,
    model: nn.Module,
    grid: Grid,
    observation: Observation,
    reply: Message,
    sealed: bytes,
) -> Verdict:
    rules, commitment = setup.federation, setup.commitments.get(observation.client)
    return audit.examine(
        Submission(
            round=observation.round,
            client=observation.client,
            proof=sealed,
            model=model,
            sent=observation.sent,
            received=observation.received,
            num_examples=observation.num_examples,
            task=setup.task,
            batch_size=rules.batch_size,
            steps=rules.local_steps,
            learning_rate=rules.local_lr,
            reveal=lambda steps: _revealed(grid, reply.metadata.src_node_id, steps, rules.timeout),
            seed=setup.seed,
            commitment=commitment,
            kind=rules.reply_kind,
            defended=lambda reply: _defended(setup, reply),
            order=None
            if commitment is None
            else order_of(rules, setup.seed, observation, commitment.examples),
        )
    )


def _defended(setup: ServerSetup, reply: Weights) -> Weights:
    """Return what defenses without chance make of a reply."""
    for defense in setup.defenses:
        reply = defense.on_reply(reply, setup.federation.reply_kind, generator(setup.seed, "no chance"))
    return reply


class OfRound(Protocol):
    """Whatever tells a round and a client."""

    @property
    def round(self) -> int:
        """The round."""

    @property
    def client(self) -> int:
        """The client."""


def order_of(rules: Federation, seed: int, seen: OfRound, number: int) -> tuple[tuple[int, ...], ...] | None:
    """Return where a client's data of so many examples has those of a round's steps.

    None where batches are made by their labels, which the server does not know.
    """
    if rules.labels != "natural":
        return None
    first, replacement = (seen.round - 1) * rules.local_steps, rules.sampling == "with_replacement"
    return tuple(
        tuple(natural_places(number, rules.batch_size, replacement, seed, seen.client, step).tolist())
        for step in range(first, first + rules.local_steps)
    )


def _revealed(grid: Grid, node: int, steps: Sequence[int], timeout: float) -> list[Batch]:
    """Ask a client for the batches of some of its steps."""
    question = RecordDict({"steps": ConfigRecord({"steps": list(steps)})})
    for reply in grid.send_and_receive([Message(question, node, MessageType.QUERY)], timeout=timeout):
        if reason := failure_of(reply):
            raise FedsimError(reason)
        shown, beside = decode(arrays_of(reply)), reply.content.get("paths")
        paths = [beside.get(str(s), b"") if isinstance(beside, ConfigRecord) else b"" for s in steps]
        try:
            return [
                Batch(
                    images=shown[f"images {s}"],
                    labels=shown[f"labels {s}"],
                    paths=path if isinstance(path, bytes) else b"",
                )
                for s, path in zip(steps, paths, strict=True)
            ]
        except KeyError as error:
            raise FedsimError(f"{error} is missing") from error
    raise FedsimError("no answer")
