"""What an engine is given to play, and what it does with it."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TypeVar

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedsim.errors import FedsimError

Item = TypeVar("Item")
Handle = TypeVar("Handle")
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True, eq=False)
class Apps:
    """The two sides of a run. Processes that cannot be handed them build their own from the run folder."""

    server: ServerApp
    client: ClientApp
    clients: int
    rounds: int
    folder: Path  # of the run, with its config.yaml
    done: int = 0  # rounds that were played before


class Engine:
    """Plays a Flower server app against a client app, and spreads other work over processes."""

    def play(self, apps: Apps) -> None:
        """Run until the server app ends."""
        raise NotImplementedError

    def spread(
        self, function: Callable[[Item], Found], items: Iterable[Item], processes: int
    ) -> Iterator[Found]:
        """Yield what a function makes of every item, in order, by so many processes of this machine."""
        others = active_children()
        # Spawned: a forked process would share the parent's torch threads and random state.
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            try:
                yield from in_order(lambda item: pool.submit(function, item), Future.result, items, processes)
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                for child in active_children():  # an attack may take hours
                    if child not in others:
                        child.terminate()
                if isinstance(error, BrokenProcessPool):
                    raise FedsimError(
                        "a process that attacked was killed, perhaps for lack of memory. Remedy: fewer "
                        "attackers; fedsim resume goes on with what is missing."
                    ) from error
                raise


def in_order(
    submit: Callable[[Item], Handle], result: Callable[[Handle], Found], items: Iterable[Item], most: int
) -> Iterator[Found]:
    """Yield the results of submitted items in order, with at most twice so many begun as can run at once."""
    begun = deque[Handle]()
    for item in items:
        begun.append(submit(item))
        if len(begun) >= 2 * most:
            yield result(begun.popleft())
    while begun:
        yield result(begun.popleft())
