"""Flower in one process: messages go straight to the client app. No Ray, no waiting, easy to debug."""

from collections.abc import Iterable, Iterator

from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedsim.core import progress
from fedsim.flower.engines.engine import Apps, Engine
from fedsim.flower.engines.grid import LocalGrid, Settings, answer, serve


class Inline(Engine):
    """All clients one after another in this process."""

    def play(self, apps: Apps) -> None:
        """Run the server app against the client app until it ends."""
        play_inline(apps.server, apps.client, apps.clients)


def play_inline(
    server_app: ServerApp, client_app: ClientApp, clients: int, run_config: Settings | None = None
) -> None:
    """Run any Flower server app against a client app until it ends; run_config: the app's own settings."""
    serve(server_app, InlineGrid(client_app, clients, run_config), run_config)


class InlineGrid(LocalGrid):
    """A Flower Grid that answers every message on the spot."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Answer messages one by one, each when its reply is asked for, within so many seconds each."""
        waiting = list(messages)
        with progress.bar("clients", len(waiting)) as advance:
            for done, message in enumerate(waiting, start=1):
                if (reply := self._answer(message, timeout)) is not None:
                    yield reply
                advance(done)

    def _answer(self, message: Message, seconds: float | None) -> Message | None:
        return answer(self.app, message, self.contexts[message.metadata.dst_node_id], seconds)
