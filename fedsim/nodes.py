"""Which client a Flower node is, and how it says that it failed. Light: some engines ask a new process."""

import time

from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsim.errors import FedsimError, in_words

CLIENT_FAILED = 2  # Flower's code for an exception in the client's own code
PATIENCE = 180.0  # seconds for all nodes to appear and say who they are


def who_is_who(grid: Grid, clients: int) -> dict[int, int]:
    """Ask every node for its client number: node ids are random on some engines."""
    deadline = time.monotonic() + PATIENCE
    while len(nodes := sorted(grid.get_node_ids())) < clients:
        if time.monotonic() > deadline:
            raise FedsimError(f"expected {clients} nodes, only {len(nodes)} appeared within {PATIENCE:g} s")
        time.sleep(0.1)
    questions = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
    found: dict[int, int] = {}
    for reply in grid.send_and_receive(questions, timeout=PATIENCE):
        if reply.has_content() and "who" in reply.content.config_records:
            found[reply.metadata.src_node_id] = int(str(reply.content.config_records["who"]["client"]))
    if sorted(found.values()) != list(range(clients)):
        raise FedsimError(f"expected nodes for clients 0 to {clients - 1}, got {sorted(found.values())}")
    return found


def asks_who(message: Message) -> bool:
    """Return whether a message is that question."""
    return message.metadata.message_type == MessageType.QUERY and not message.content


def answer_who(message: Message, context: Context) -> Message:
    """Answer it."""
    return Message(RecordDict({"who": ConfigRecord({"client": client_number(context)})}), reply_to=message)


def client_number(context: Context) -> int:
    """Return the number of the client that a node is."""
    return int(context.node_config["partition-id"])


def failure(message: Message, error: Exception) -> Message:
    """Answer an exception with an error reply of the same words on every engine."""
    return Message(
        Error(code=CLIENT_FAILED, reason=f"the client failed: {in_words(error)}"), reply_to=message
    )
