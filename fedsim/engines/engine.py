"""What an engine is given to play, and what it does with it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp


@dataclass(frozen=True, kw_only=True, eq=False)
class Apps:
    """The two sides of a run. Processes that cannot be handed them build their own from the run folder."""

    server: ServerApp
    client: ClientApp
    clients: int
    rounds: int
    folder: Path  # of the run, with its config.yaml
    done: int = 0  # rounds that were played before


class Engine(Protocol):
    """Plays a Flower server app against a client app."""

    def play(self, apps: Apps) -> None:
        """Run until the server app ends."""
