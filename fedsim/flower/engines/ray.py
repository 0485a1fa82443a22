"""Clients as Ray tasks, on this machine or on an existing cluster."""

import contextlib
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from flwr.app import ArrayRecord, Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp

from fedsim.core import environment, progress
from fedsim.core.errors import FedsimError
from fedsim.flower.engines.engine import Apps, Engine, Found, Item, in_order
from fedsim.flower.engines.grid import LocalGrid, answer, serve
from fedsim.flower.nodes import failure

LONGEST_FOLDER = 40  # characters: Ray adds some 60, and a socket's path may have 107
POLL = 1.0  # seconds that a look for replies takes at most
GRACE = 5.0  # seconds for a client that ran out of time to say so
START = 60.0  # seconds for Ray to start a process


class Ray(Engine):
    """Clients in parallel on Ray; `address` joins a running cluster that shares the run folder's disk."""

    def __init__(
        self,
        *,
        cpus_per_client: float = 1.0,
        gpus_per_client: float = 0.0,
        address: str | None = None,
        ahead: int = 64,
    ) -> None:
        if ahead < 1:
            raise FedsimError(f"engine.ahead: expected a whole number of at least 1, got {ahead}")
        if cpus_per_client <= 0 or gpus_per_client < 0:
            raise FedsimError(
                "engine: expected cpus_per_client > 0 and gpus_per_client >= 0, "
                f"got {cpus_per_client} and {gpus_per_client}"
            )
        self.resources = {"num_cpus": cpus_per_client, "num_gpus": gpus_per_client}
        self.address, self.ahead = address, ahead

    def play(self, apps: Apps) -> None:
        """Run the server app against the client app until it ends, then stop Ray."""
        import ray

        with self._running():
            grid = RayGrid(apps.client, apps.clients, resources=self.resources, ahead=self.ahead)
            try:
                serve(apps.server, grid)
            except ray.exceptions.RayError as error:
                raise _in_our_words(error) from error

    def spread(
        self, function: Callable[[Item], Found], items: Iterable[Item], processes: int
    ) -> Iterator[Found]:
        """Yield what a function makes of every item, in order, by so many of Ray's processes, wherever."""
        import ray

        with self._running():
            try:
                task = ray.remote(**self.resources)(function)
                yield from in_order(task.remote, ray.get, items, processes, deque())
            except ray.exceptions.RayError as error:
                raise _in_our_words(error) from error

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Start or join Ray, and leave it: that ends what is still running."""
        import ray

        start: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        start |= {"address": self.address} if self.address else {"_temp_dir": self._own_folder()}
        ours = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(**start)
            if ours:
                signal.signal(signal.SIGTERM, handler)  # Ray's would end us as if all were well
            yield
        except (RuntimeError, ConnectionError) as error:
            raise _in_our_words(error) from error
        finally:
            ray.shutdown()

    def _own_folder(self) -> str:
        """Return a folder for Ray's files and sockets, on a machine that can host a client."""
        cores = os.cpu_count() or 1
        if self.resources["num_cpus"] > cores:
            raise FedsimError(
                f"engine.cpus_per_client={self.resources['num_cpus']:g}, but this machine has {cores} cores. "
                "Remedy: fewer CPUs a client, or engine.address of a larger cluster."
            )
        folder = str(environment.private_folder() / "ray")
        if len(folder) > LONGEST_FOLDER:
            raise FedsimError(
                f"Ray needs a temporary folder of at most {LONGEST_FOLDER} characters, got {folder}. "
                "Remedy: TMPDIR=/tmp."
            )
        return folder


class RayGrid(LocalGrid):
    """A Flower Grid whose clients are Ray tasks. One that dies takes no other with it, and is named."""

    def __init__(
        self, client_app: ClientApp, clients: int, *, resources: Mapping[str, float], ahead: int
    ) -> None:
        super().__init__(client_app, clients)
        self._resources, self._ahead = dict(resources), ahead

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Hand out messages and yield replies as they come, at most `ahead` asked and not yet answered."""
        import ray

        task, app = ray.remote(max_retries=0, **self._resources)(_answer), ray.put(self.app)
        waiting, left, arrays = dict[Any, Message](), deque(messages), _PutOnce()
        patience = math.inf if timeout is None else timeout + START
        with progress.bar("clients", len(left)) as advance:
            total, heard = len(left), time.monotonic()
            while left or waiting:
                while left and len(waiting) < self._ahead:
                    message = left.popleft()
                    rest, shared = arrays.split(message)
                    context = self.contexts[message.metadata.dst_node_id]
                    waiting[task.remote(app, rest, message.metadata, context, timeout, **shared)] = message
                done, _ = ray.wait(list(waiting), timeout=POLL)
                if time.monotonic() - heard > patience:  # stuck where not even a thread can end it
                    for stuck in waiting:
                        ray.cancel(stuck, force=True)
                    done, heard = list(waiting), time.monotonic()
                for reference in done:
                    message, heard = waiting.pop(reference), time.monotonic()
                    if (reply := self._taken(reference, message, timeout)) is not None:
                        yield reply
                    advance(total - len(left) - len(waiting))

    def _taken(self, reference: Any, message: Message, timeout: float | None) -> Message | None:
        """Return a client's reply, and keep its state; its death is its reply, too."""
        import ray

        lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError)
        try:
            reply: Message | None
            reply, state = ray.get(reference)
        except (*lost, ray.exceptions.TaskCancelledError) as error:
            return failure(message, FedsimError(f"its process died ({type(error).__name__})"))
        self.contexts[message.metadata.dst_node_id].state = state
        return reply


class _PutOnce:
    """Puts what several messages share, such as a round's weights, into Ray's store once."""

    def __init__(self) -> None:
        self._record: ArrayRecord | None = None
        self._reference: Any = None

    def split(self, message: Message) -> tuple[RecordDict, dict[str, Any]]:
        """Return a message's content without its arrays, and where they are."""
        import ray

        arrays = message.content.get("arrays")
        if not isinstance(arrays, ArrayRecord):
            return message.content, {}
        if arrays is not self._record:
            self._record, self._reference = arrays, ray.put(arrays)
        rest = RecordDict({name: record for name, record in message.content.items() if record is not arrays})
        return rest, {"arrays": self._reference}


def _answer(
    app: ClientApp,
    content: RecordDict,
    metadata: Metadata,
    context: Context,
    seconds: float | None,
    arrays: ArrayRecord | None = None,
) -> tuple[Message | None, RecordDict]:
    """Be a client, in a process of Ray's; one that cannot be interrupted is ended from a thread."""
    if arrays is not None:
        content = RecordDict({"arrays": arrays, **content})
    message = Message(content, metadata=metadata)  # type: ignore[call-overload]
    end = threading.Timer(math.inf if seconds is None else seconds + GRACE, os._exit, (1,))
    end.daemon = True
    if seconds is not None:
        end.start()
    try:
        reply = answer(app, message, context, seconds)
    finally:
        end.cancel()
    return reply, context.state


def _in_our_words(error: Exception) -> FedsimError:
    cause: BaseException = getattr(error, "cause", None) or error
    while not isinstance(cause, FedsimError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, FedsimError):
        return cause
    words = " ".join(str(cause).split())
    return FedsimError(
        f"Ray failed: {words}. Remedy: check engine.cpus_per_client, engine.gpus_per_client and "
        "engine.address, or engine=inline; fedsim resume goes on with what is missing."
    )
