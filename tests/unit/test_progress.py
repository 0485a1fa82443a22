"""Lines of progress where there is no terminal: how many, of what, and from whom."""

import io
import multiprocessing
import sys

import pytest

from fedsim.core import progress
from fedsim.lab import assess
from fedsim.storage.runfolder import RunFolder


class Clock:
    """Stands in for the time module; starts anywhere."""

    now = 1e6

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    monkeypatch.delenv(progress.SETTING)
    monkeypatch.setattr(progress, "time", clock := Clock())
    return clock


def count(clock: Clock, label: str, total: int, seconds: float) -> None:
    with progress.bar(label, total) as advance:
        for done in range(1, total + 1):
            clock.now += seconds
            advance(done)


@pytest.mark.parametrize(
    ("label", "total", "seconds", "lines"),
    [
        ("rounds", 3, 20.0, ["rounds 1 of 3", "rounds 2 of 3", "rounds 3 of 3"]),
        ("rounds", 4, 2.0, ["rounds 3 of 4", "rounds 4 of 4"]),  # from the fifth second on
        ("rounds", 1_000, 0.004, []),  # four seconds
        ("rounds", 100, 0.0625, ["rounds 80 of 100", "rounds 96 of 100"]),  # a second between two lines
        ("attacks", 1_200, 1.0, [f"attacks {done:,} of 1,200" for done in range(60, 1_201, 60)]),
        ("attacks", 59, 1.0, []),
        ("attacks", 2, 100.0, ["attacks 1 of 2", "attacks 2 of 2"]),
    ],
)
def test_a_line_a_round_and_one_a_minute_of_all_else(
    clock, capsys, label: str, total: int, seconds: float, lines: list[str]
) -> None:
    count(clock, label, total, seconds)
    said = capsys.readouterr()
    assert said.err.splitlines() == lines
    assert said.out == ""


def test_what_takes_long_within_a_round_is_told_with_its_round(clock, capsys) -> None:
    with progress.bar("rounds", 2) as advance:
        for round in (1, 2):
            count(clock, "clients", 3, 40.0)
            advance(round)
    assert capsys.readouterr().err.splitlines() == [
        "rounds 0 of 2, clients 2 of 3",
        "rounds 1 of 2",
        "rounds 1 of 2, clients 2 of 3",
        "rounds 2 of 2",
    ]


def test_what_stands_still_is_not_told_again(clock, capsys) -> None:
    with progress.bar("rounds", 9) as advance:
        for _ in range(10):
            clock.now += 30
            advance(4)
    assert capsys.readouterr().err == "rounds 4 of 9\n"


def test_lines_hold_words_alone(clock, capsys) -> None:
    with progress.bar("forging \x1b[2J", 3) as advance:
        clock.now += 100
        advance(1, "a name\n[/] \x9b \u202e")
    assert capsys.readouterr().err == "forging \\x1b[2J 1 of 3: a name\\n[/] \\x9b \\u202e\n"


def test_a_dumb_terminal_gets_lines(clock, monkeypatch) -> None:
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "dumb")
    count(clock, "rounds", 1, 10.0)
    assert screen.getvalue() == "rounds 1 of 1\n"


def test_a_reader_who_has_left_ends_nothing(clock, monkeypatch) -> None:
    class Left(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Left())
    count(clock, "rounds", 2, 10.0)


def test_processes_that_work_for_another_are_silent(clock, capsys, monkeypatch, tmp_path) -> None:
    with monkeypatch.context() as child:
        child.setattr(multiprocessing, "parent_process", lambda: "the one that the user started")
        count(clock, "rounds", 1, 100.0)
    assert capsys.readouterr().err == ""

    def rebuild() -> None:
        count(clock, "attacks", 1, 100.0)
        raise KeyboardInterrupt

    monkeypatch.setenv(progress.SETTING, "")  # Ray's processes have no parent that they know of
    folder = RunFolder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        assess.run_errand(assess.Errand(rebuild=rebuild, source=folder, target=folder, round=1, client=0))
    assert capsys.readouterr().err == ""


def test_a_run_tells_of_rounds_clients_and_attacks(monkeypatch, capsys, play_small) -> None:
    monkeypatch.delenv(progress.SETTING)
    for wait in ("FIRST_ROUND", "NEXT_ROUND", "ALL_ELSE"):
        monkeypatch.setattr(progress, wait, 0.0)
    play_small()
    clients = [[f"rounds {round} of 2, clients {client} of 3" for client in (1, 2, 3)] for round in (0, 1)]
    attacks = [f"attacks {done} of 6" for done in range(1, 7)]
    told = capsys.readouterr().err.splitlines()
    assert told == [*clients[0], "rounds 1 of 2", *clients[1], "rounds 2 of 2", *attacks]
