"""Flower's simulation engine: clients as Ray actors, on this machine or on an existing cluster."""

import math
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedsim import environment
from fedsim.engines.engine import Apps
from fedsim.errors import FedsimError

LONGEST_FOLDER = 40  # characters: Ray adds some 60, and a socket's path may have 107
POLL = 0.05  # seconds between looks for replies


class Ray:
    """Clients in parallel on Ray; `address` joins a running cluster that shares the run folder's disk."""

    def __init__(
        self, *, cpus_per_client: float = 1.0, gpus_per_client: float = 0.0, address: str | None = None
    ) -> None:
        if cpus_per_client <= 0 or gpus_per_client < 0:
            raise FedsimError(
                "engine: expected cpus_per_client > 0 and gpus_per_client >= 0, "
                f"got {cpus_per_client} and {gpus_per_client}"
            )
        self.resources = {"num_cpus": cpus_per_client, "num_gpus": gpus_per_client}
        self.address = address

    def play(self, apps: Apps) -> None:
        """Run the server app against the client app until it ends, then stop Ray."""
        from flwr.simulation import run_simulation

        environment.silence_flower()
        start: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address:
            start["address"] = self.address
        else:
            start["_temp_dir"] = self._own_folder()
        stop = threading.Event()
        try:
            run_simulation(
                server_app=stoppable(apps.server, stop),
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


def stoppable(server_app: ServerApp, stop: threading.Event, poll: float = POLL) -> ServerApp:
    """Return the server app on a grid that stops waiting when told to, and hands replies on as they come."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        def send_and_receive(
            messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterator[Message]:
            waiting = set(grid.push_messages(messages))
            deadline = time.monotonic() + (math.inf if timeout is None else timeout)
            while waiting and time.monotonic() < deadline:
                if stop.is_set():
                    raise FedsimError("the simulation was stopped")
                for reply in grid.pull_messages(waiting):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    yield reply
                time.sleep(poll)

        grid.send_and_receive = send_and_receive  # type: ignore[method-assign]
        server_app(grid=grid, context=context)

    return app
