"""A Flower grid whose clients are on this side: their contexts, and how one of them answers a message."""

import contextlib
import logging
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedsim.core import environment
from fedsim.flower.nodes import OutOfTime, failure
from fedsim.storage.files import StorageError

log = logging.getLogger(__name__)
Settings = Mapping[str, bool | float | int | str]  # of a Flower app: its run config
RUN_ID = 1
FIRST_NODE = 1000  # client 0; node 1 is the server in Flower


class LocalGrid(Grid):
    """A Flower Grid that knows its clients; how they are reached is for others to say."""

    def __init__(self, client_app: ClientApp, clients: int, run_config: Settings | None = None) -> None:
        self.app = client_app
        self.contexts = {
            FIRST_NODE + client: new_context(
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
        return list(self.contexts)

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


def serve(server_app: ServerApp, grid: LocalGrid, run_config: Settings | None = None) -> None:
    """Run a server app on a grid until it ends."""
    environment.silence_flower()
    # Message() takes the sender from here; Flower's own engines set it when a task starts.
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN_ID, SUPERLINK_NODE_ID
    server_app(grid=grid, context=new_context(0, {}, run_config))


def new_context(node_id: int, node_config: Mapping[str, int], run_config: Settings | None) -> Context:
    """Return the context of a node that has seen nothing yet."""
    return Context(
        run_id=RUN_ID,
        node_id=node_id,
        node_config=dict(node_config),
        state=RecordDict(),
        run_config=dict(run_config or {}),
    )


def answer(app: ClientApp, message: Message, context: Context, seconds: float | None) -> Message | None:
    """Have a client answer a message within so many seconds; whatever it does instead is its failure."""
    # The content's records are shared by all clients, the dict around them is the client's own.
    own = Message(RecordDict(dict(message.content)), metadata=message.metadata)  # type: ignore[call-overload]
    try:
        with time_limit(seconds):
            reply = app(own, context)
    except StorageError:  # the disk's failure is nobody's, and ends the run
        raise
    except (Exception, SystemExit) as error:
        log.exception("client app failed")
        return failure(message, error)
    return reply if isinstance(reply, Message) else None


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise OutOfTime in the block after so many seconds; Python lets only a main thread be interrupted."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(number: int, frame: object) -> None:
        raise OutOfTime(f"no reply within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
