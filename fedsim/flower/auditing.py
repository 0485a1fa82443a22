"""An audit over Flower: a reply's proof is judged, and the client is asked for batches that it names."""

import logging
from collections.abc import Sequence

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import nn

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Audit, Submission
from fedsim.core.training import Batch
from fedsim.core.types import Observation
from fedsim.flower.nodes import failure_of
from fedsim.flower.records import arrays_of, decode
from fedsim.flower.setups import ServerSetup

log = logging.getLogger(__name__)


def passes(
    setup: ServerSetup, audit: Audit, model: nn.Module, grid: Grid, observation: Observation, reply: Message
) -> bool:
    """Have the audit judge a reply before it counts, and keep its verdict. model: in the clients' mode."""
    proof, rules = reply.content.get("proof"), setup.federation
    came = proof.get("sealed") if isinstance(proof, ConfigRecord) else None
    sealed = came if isinstance(came, bytes) else b""
    if audit.keep:
        setup.keep_proof(observation.round, observation.client, sealed)
    verdict = audit.examine(
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
        )
    )
    setup.keep_verdict(verdict)
    if not verdict.accepted:
        log.info("round %d, client %d: rejected: %s", verdict.round, verdict.client, verdict.reason)
    return verdict.accepted


def _revealed(grid: Grid, node: int, steps: Sequence[int], timeout: float) -> list[Batch]:
    """Ask a client for the batches of some of its steps."""
    question = RecordDict({"steps": ConfigRecord({"steps": list(steps)})})
    for reply in grid.send_and_receive([Message(question, node, MessageType.QUERY)], timeout=timeout):
        if reason := failure_of(reply):
            raise FedsimError(reason)
        shown = decode(arrays_of(reply))
        try:
            return [Batch(images=shown[f"images {s}"], labels=shown[f"labels {s}"]) for s in steps]
        except KeyError as error:
            raise FedsimError(f"{error} is missing") from error
    raise FedsimError("no answer")
