"""What an engine is given to play, and what it does with it."""

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedsim.core.errors import FedsimError
from fedsim.flower.engines.processes import end_with

GRACE = 5.0  # seconds for an interrupted attack to hand over what it has
STOPPED = threading.Event()  # in a process that attacks: Ctrl-C was pressed
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
        pool = ProcessPoolExecutor(
            processes, mp_context=get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
        )
        begun = deque[Future[Found]]()
        with pool:
            try:
                yield from in_order(
                    lambda item: pool.submit(_interruptible, function, item),
                    Future.result,
                    items,
                    processes,
                    begun,
                )
            except KeyboardInterrupt as stop:  # who is at it got it, too, and may have something to show
                pool.shutdown(wait=False, cancel_futures=True)
                if type(stop) is not KeyboardInterrupt:  # a signal to this process alone
                    for child in set(active_children()) - set(others):
                        if child.pid is not None:
                            os.kill(child.pid, signal.SIGINT)
                deadline = time.monotonic() + GRACE
                try:
                    for future in begun:
                        with contextlib.suppress(CancelledError, TimeoutError, KeyboardInterrupt):
                            yield future.result(timeout=max(0.0, deadline - time.monotonic()))
                finally:
                    end_children(others)
                raise
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                end_children(others)
                if isinstance(error, BrokenProcessPool):
                    raise FedsimError(
                        "a process that attacked was killed, perhaps for lack of memory. Remedy: fewer "
                        "attackers; fedsim resume goes on with what is missing."
                    ) from error
                raise


def in_order(
    submit: Callable[[Item], Handle],
    result: Callable[[Handle], Found],
    items: Iterable[Item],
    most: int,
    begun: deque[Handle],
) -> Iterator[Found]:
    """Yield the results of submitted items in order, with at most twice so many begun as can run at once."""
    for item in items:
        begun.append(submit(item))
        if len(begun) >= 2 * most:
            yield result(begun[0])
            begun.popleft()
    while begun:
        yield result(begun[0])
        begun.popleft()


def _begin(parent: int) -> None:
    """Let a process end with the one that started it, even by kill -9; Ctrl-C is for what it works on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent)


def _interruptible(function: Callable[[Item], Found], item: Item) -> Found:
    def interrupt(number: int, frame: object) -> None:
        STOPPED.set()
        raise KeyboardInterrupt

    if STOPPED.is_set():
        raise CancelledError
    signal.signal(signal.SIGINT, interrupt)
    try:
        return function(item)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_children(others: Collection[BaseProcess]) -> None:
    """End the processes that were started here, but for these."""
    for child in active_children():  # an attack may take hours
        if child not in others:
            child.terminate()
