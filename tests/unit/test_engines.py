import os
import signal
import time
from collections import deque
from types import SimpleNamespace

import pytest
from flwr.serverapp import ServerApp

from fedsim.core.errors import FedsimError
from fedsim.flower.engines.engine import in_order
from fedsim.flower.engines.inline import Inline
from fedsim.flower.engines.ray import Ray
from fedsim.lab.deployed import few_ahead


def test_a_machine_too_small_for_one_client_is_said_before_ray_starts() -> None:
    with pytest.raises(FedsimError, match=r"cpus_per_client=9999, but this machine has .* Remedy"):
        Ray(cpus_per_client=9999).play(None)  # type: ignore[arg-type]
    with pytest.raises(FedsimError, match="cpus_per_client > 0"):
        Ray(cpus_per_client=0)
    with pytest.raises(FedsimError, match=r"engine\.ahead: expected a whole number of at least 1, got 0"):
        Ray(ahead=0)


class SlowGrid:
    """Answers every message that was pushed at the next look, last first, and notes how many wait."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.most = 0

    def push_messages(self, messages):
        assert isinstance(messages, list)  # some of Flower's grids walk over them twice
        assert messages
        pushed = messages
        self.waiting += pushed
        self.most = max(self.most, len(self.waiting))
        return pushed

    def pull_messages(self, message_ids):
        replies, self.waiting = self.waiting[::-1], []
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=m)) for m in replies]


@pytest.mark.parametrize("ahead", [1, 7, 64])
def test_only_so_many_clients_are_asked_ahead(ahead: int) -> None:
    grid, answered = SlowGrid(), []
    app = ServerApp()

    @app.main()
    def main(grid, context) -> None:
        for reply in grid.send_and_receive(range(100), timeout=60):
            answered.append(reply.metadata.reply_to_message_id)

    few_ahead(app, ahead, poll=0)(grid=grid, context=None)  # type: ignore[arg-type]
    assert sorted(answered) == list(range(100))
    assert grid.most == ahead


def test_results_come_in_order_and_few_are_begun() -> None:
    begun, ended = [], []

    def submit(item: int) -> int:
        begun.append(item)
        assert len(begun) - len(ended) <= 6
        return item

    for found in in_order(submit, lambda item: item * item, range(20), 3, deque()):
        ended.append(found)
    assert ended == [n * n for n in range(20)]


def slow_but_first(item: int) -> int:
    if item == -1:
        raise ZeroDivisionError("a bad errand")
    if item == -2:
        os.kill(os.getpid(), signal.SIGKILL)  # as the system does when memory is short
    time.sleep(0.3 if item == 0 else 0.0)
    return 10 * item


def test_processes_give_results_in_order_and_errors_as_they_are() -> None:
    assert list(Inline().spread(slow_but_first, range(5), 2)) == [0, 10, 20, 30, 40]
    with pytest.raises(ZeroDivisionError, match="a bad errand"):
        list(Inline().spread(slow_but_first, [1, -1], 1))
    with pytest.raises(FedsimError, match=r"a process that attacked was killed.*Remedy: fewer attackers"):
        list(Inline().spread(slow_but_first, [1, -2], 1))
