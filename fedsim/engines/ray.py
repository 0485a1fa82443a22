"""Flower's simulation engine: clients as Ray actors, on this machine or on an existing cluster."""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedsim import environment
from fedsim.engines.engine import Apps, Engine, Found, Item, in_order
from fedsim.errors import FedsimError

LONGEST_FOLDER = 40  # characters: Ray adds some 60, and a socket's path may have 107
POLL = 0.05  # seconds between looks for replies


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
        from flwr.simulation import run_simulation

        environment.silence_flower()
        start, stop = self._start(), threading.Event()
        try:
            run_simulation(
                server_app=stoppable(apps.server, stop, self.ahead),
                client_app=apps.client,
                num_supernodes=apps.clients,
                backend_config={"init_args": start, "client_resources": dict(self.resources)},
            )
        except RuntimeError as error:
            cause: BaseException = error
            while cause.__cause__ is not None:  # Flower wraps what Ray said, twice
                cause = cause.__cause__
            words = " ".join(str(cause).split())
            raise FedsimError(
                f"Flower's simulation engine failed: {words}. Remedy: check engine.cpus_per_client, "
                "engine.gpus_per_client and engine.address, or engine=inline."
            ) from error
        finally:
            stop.set()  # Flower leaves the server's thread running when it is interrupted

    def spread(
        self, function: Callable[[Item], Found], items: Iterable[Item], processes: int
    ) -> Iterator[Found]:
        """Yield what a function makes of every item, in order, by so many of Ray's processes, wherever."""
        import ray

        ray.init(**self._start())
        try:
            task = ray.remote(**self.resources)(function)
            yield from in_order(task.remote, ray.get, items, processes, deque())
        except ray.exceptions.RayError as error:
            if isinstance(cause := getattr(error, "cause", None), FedsimError):
                raise cause from error
            words = " ".join(str(cause or error).split())
            raise FedsimError(f"Ray failed: {words}. fedsim resume goes on with what is missing.") from error
        finally:
            ray.shutdown()  # also ends what is running

    def _start(self) -> dict[str, Any]:
        """Return how to start or join Ray."""
        start: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        return start | ({"address": self.address} if self.address else {"_temp_dir": self._own_folder()})

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


def stoppable(server_app: ServerApp, stop: threading.Event, ahead: int, poll: float = POLL) -> ServerApp:
    """Return the server app on a grid that stops waiting when told to, and hands replies on as they come.

    At most `ahead` clients are asked before their replies are taken: a slow server is not flooded.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        def send_and_receive(
            messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterator[Message]:
            left, waiting = iter(messages), set[str]()
            deadline = time.monotonic() + (math.inf if timeout is None else timeout)
            while time.monotonic() < deadline:
                if more := list(islice(left, ahead - len(waiting))):  # Flower refuses to push nothing
                    waiting.update(grid.push_messages(more))
                if not waiting:
                    return
                time.sleep(poll)
                if stop.is_set():
                    raise FedsimError("the simulation was stopped")
                for reply in grid.pull_messages(waiting):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    yield reply

        grid.send_and_receive = send_and_receive  # type: ignore[method-assign]
        server_app(grid=grid, context=context)

    return app
