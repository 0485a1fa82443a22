"""What others say reaches a terminal and log.txt as words: no commands, no markup, no forged records."""

import io
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as draw
from made_move import a_move
from tapped_app import client_app, federate

from fedsim.core import progress
from fedsim.core.errors import FedsimError, in_words, printable
from fedsim.flower.wiretap import Wiretap
from fedsim.report.forging_table import print_moves, refutation
from fedsim.report.terminal import print_summary
from fedsim.storage.logs import logged
from fedsim.storage.runfolder import RunFolder

HOSTILE = "[bold]x[/] [/] :smile: \x1b[31m \x1b]0;title\x07 \x9b2J \r\x08 \u202e \u2028 \x7f \\[ \\"
SHOWN = HOSTILE.encode("unicode_escape").decode().replace("\\\\", "\\")


def assert_harmless(text: str) -> None:
    assert printable(text) == text
    text.encode()


@given(text=draw.text(draw.characters(codec=None)))
def test_printable_words_have_nothing_else_and_stay_as_they_are(text: str) -> None:
    for keep in ("\n\t", ""):
        shown = printable(text, keep=keep)
        assert all(letter.isprintable() or letter in keep for letter in shown)
        assert printable(shown, keep=keep) == shown
        shown.encode()
        assert text.isprintable() is False or shown == text


def test_escapes_say_what_was_there() -> None:
    assert printable("a\x1b[31m\x9b\u202e\ud800\r\n\tb") == "a\\x1b[31m\\x9b\\u202e\\ud800\\r\n\tb"
    assert printable("a\n\tb", keep="") == "a\\n\\tb"
    assert printable("Grüße, 中文 😀 [/] \\ $") == "Grüße, 中文 😀 [/] \\ $"
    assert in_words(ValueError("\x1b[2J")) == "ValueError: \\x1b[2J"
    assert in_words(FedsimError("\ud800")) == "\\ud800"


def test_a_summary_shows_names_as_they_are(tmp_path: Path, capsys) -> None:
    folder = RunFolder(tmp_path / "\x1b[31mred\n")
    metrics = {HOSTILE: 0.5, "[/]": None, "[link=http://x]y": 1.0}
    summary = {"name": HOSTILE, "observations": 1, "faults": 0, "metrics": metrics, "baseline": {"[/]": 0.1}}
    folder.write_summary(summary)
    print_summary(folder)
    said = capsys.readouterr().out
    assert_harmless(said)
    assert said.startswith(SHOWN + ": 1 observation, ")
    assert "\\x1b[31mred\\n/report.html" in said
    for name in ("[bold]x[/]", ":smile:", "│ [/] ", "[link=http://x]y"):
        assert name in said


@pytest.mark.parametrize("words", [HOSTILE, "[/]", "\ud800"], ids=["all", "markup", "surrogate"])
def test_a_game_shows_names_as_they_are(capsys, words: str) -> None:
    moves = [a_move(words, number) for number in range(3)]
    print_moves(moves)
    print(refutation(moves, [1]))
    said = capsys.readouterr().out
    assert_harmless(said)
    assert printable(words, keep="").split()[0] in said


def test_the_log_holds_no_commands_and_no_forged_records(tmp_path: Path) -> None:
    log = logging.Logger("fedsim.hostile")  # by itself: what the tests' own log keeps must be UTF-8
    with logged(tmp_path):
        log.addHandler(logging.getLogger().handlers[-1])
        log.warning("client said: %s", "\x1b[31m\r\u202e\ud800")
        log.warning("%s", "failed\n2026-01-01 00:00:00,000 INFO fedsim: all is well")
        try:
            raise ValueError("\x9b2J\n2026-01-01 00:00:00,000 INFO fedsim: all is well")
        except ValueError:
            log.exception("\ud800")
    text = (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert_harmless(text)
    assert "client said: \\x1b[31m\\r\\u202e\\ud800" in text
    records = re.findall(r"^\d{4}-\d\d-\d\d .*$", text, flags=re.MULTILINE)
    assert len(records) == 3
    assert text.count("\n    2026-01-01 00:00:00,000 INFO") == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_show_labels_and_notes_as_they_are(monkeypatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.delenv(progress.SETTING)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with progress.bar("[/] \x1b]0;label\x07", 3) as advance, progress.bar("inner", 2) as inner:
        advance(1, "[bold]note[/bold] \x1b]0;note\x07\ud800")
        inner(1)
        print("meanwhile [/]", end="", file=sys.stderr, flush=True)
        progress._shown[0].refresh()
    said = screen.getvalue()
    assert "[/] \\x1b]0;label\\x07: [bold]note[/bold] \\x1b]0;note\\x07\\ud800" in said
    assert "inner" in said
    assert "meanwhile [/]" in said
    assert "\x1b]0;" not in said
    assert not progress._shown


def test_a_clients_words_reach_the_apps_log_as_words(tmp_path: Path, caplog) -> None:
    def failing(message, client, round):
        if client == 1:
            raise ValueError("\x1b]0;title\x07 \u202e")

    class Patient(FedAvg):
        def aggregate_train(self, server_round, replies):
            return super().aggregate_train(server_round, [r for r in replies if not r.has_error()])

    with caplog.at_level(logging.WARNING, logger="fedsim.flower.listener"):
        federate(Wiretap(Patient(), tmp_path / "tap"), client_app(failing))
    told = [record.getMessage() for record in caplog.records if record.name == "fedsim.flower.listener"]
    assert any("\\x1b]0;title\\x07 \\u202e" in words for words in told)
    for words in (*told, *(fault.reason for fault in RunFolder(tmp_path / "tap").faults())):
        assert_harmless(words)


def test_a_reader_who_has_seen_enough_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m fedsim list | head -1", shell=True, capture_output=True, text=True, check=True
    )
    assert done.stdout == "attack=...\n"
    assert done.stderr == ""
