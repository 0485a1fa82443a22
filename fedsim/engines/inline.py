"""Flower in one process: messages go straight to the client app. No Ray, no waiting, easy to debug."""

import logging
from collections.abc import Iterable, Iterator, Mapping

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedsim import environment, progress
from fedsim.engines.engine import Apps, Engine
from fedsim.nodes import failure

log = logging.getLogger(__name__)
Settings = Mapping[str, bool | float | int | str]  # of a Flower app: its run config
RUN_ID = 1
FIRST_NODE = 1000  # client 0; node 1 is the server in Flower


class Inline(Engine):
    """All clients one after another in this process."""

    def play(self, apps: Apps) -> None:
        """Run the server app against the client app until it ends."""
        play_inline(apps.server, apps.client, apps.clients)


def play_inline(
    server_app: ServerApp, client_app: ClientApp, clients: int, run_config: Settings | None = None
) -> None:
    """Run any Flower server app against a client app until it ends; run_config: the app's own settings."""
    environment.silence_flower()
    # Message() takes the sender from here; Flower's own engines set it when a task starts.
    TaskIdentity.task_id, TaskIdentity.run_id = 1, RUN_ID
    TaskIdentity.node_id = SUPERLINK_NODE_ID
    context = _context(0, {}, run_config)
    server_app(grid=InlineGrid(client_app, clients, run_config), context=context)


class InlineGrid(Grid):
    """A Flower Grid that answers every message on the spot."""

    def __init__(
        self,
        client_app: ClientApp,
        clients: int,
        run_config: Settings | None = None,
    ) -> None:
        self._app = client_app
        self._contexts = {
            FIRST_NODE + client: _context(
                FIRST_NODE + client, {"partition-id": client, "num-partitions": clients}, run_config
            )
            for client in range(clients)
        }
        self._waiting: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Run:
        """The one run."""
        return Run.create_empty(RUN_ID)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message as Flower's other grids do."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the clients' node ids."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep messages until their replies are pulled."""
        identifiers = []
        for number, message in enumerate(messages, start=len(self._waiting)):
            identifiers.append(f"{message.metadata.group_id}/{number}/{message.metadata.dst_node_id}")
            self._waiting[identifiers[-1]] = message
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Answer pushed messages."""
        return list(self.send_and_receive([self._waiting.pop(i) for i in message_ids]))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Answer messages one by one, each when its reply is asked for."""
        waiting = list(messages)
        with progress.bar("clients", len(waiting)) as advance:
            for done, message in enumerate(waiting, start=1):
                if (reply := self._answer(message)) is not None:
                    yield reply
                advance(done)

    def _answer(self, message: Message) -> Message | None:
        # The content's records are shared by all clients, the dict around them is the client's own.
        own = Message(RecordDict(dict(message.content)), metadata=message.metadata)  # type: ignore[call-overload]
        try:
            reply = self._app(own, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            log.exception("client app failed")
            return failure(message, error)
        return reply if isinstance(reply, Message) else None


def _context(
    node_id: int,
    node_config: dict[str, int],
    run_config: Settings | None = None,
) -> Context:
    return Context(
        run_id=RUN_ID,
        node_id=node_id,
        node_config=dict(node_config),
        state=RecordDict(),
        run_config=dict(run_config or {}),
    )
