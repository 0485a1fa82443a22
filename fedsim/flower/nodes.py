"""Which client a Flower node is, and how it says that it failed. Light: some engines ask a new process."""

import time

from flwr.app import ConfigRecord, Error, Message
from flwr.serverapp import Grid

from fedsim.core.errors import REFUSED, FedsimError, Refused, in_words, shortened


class OutOfTime(FedsimError):
    """A client that did not answer in time."""


CLIENT_FAILED = 2  # Flower's code for an exception in the client's own code
PATIENCE = 180.0  # seconds for all nodes to appear


def clients_of_nodes(grid: Grid, clients: int) -> dict[int, int]:
    """Give every node a client's number. Data are on the run folder's disk: any node can be any client."""
    deadline = time.monotonic() + PATIENCE
    while len(nodes := sorted(grid.get_node_ids())) < clients:
        if time.monotonic() > deadline:
            raise FedsimError(f"expected {clients} nodes, only {len(nodes)} appeared within {PATIENCE:g} s")
        time.sleep(0.1)
    return {node: client for client, node in enumerate(nodes[:clients])}


def addressed_to(client: int) -> ConfigRecord:
    """Return what tells a message's receiver which client it is: node ids are random on some engines."""
    return ConfigRecord({"client": client})


def client_number(message: Message) -> int:
    """Return the number of the client that a message is for."""
    return int(str(message.content.config_records["you"]["client"]))


def failure(message: Message, error: BaseException) -> Message:
    """Answer an exception with an error reply of the same words on every engine."""
    words = in_words(error) if isinstance(error, OutOfTime) else f"the client failed: {in_words(error)}"
    if isinstance(error, Refused):
        words = REFUSED + in_words(error)
    return Message(Error(code=CLIENT_FAILED, reason=words), reply_to=message)


def failure_of(reply: Message) -> str | None:
    """Return why a client failed, at a length that fits a table; None: it did not."""
    if not reply.has_error():
        return None
    reason = " ".join((reply.error.reason or "").split())  # Ray's come in many lines
    return shortened(reason) or f"error code {reply.error.code} without a reason"
