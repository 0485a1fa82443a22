"""Bars as a user sees them: `fedsim` at a terminal of its own."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from small_settings import SMALL

from fedsim.core import progress

ROWS, COLUMNS = 24, 100
COMMAND = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")


def at_terminal(*command: str, cwd: Path) -> str:
    """Return all that a command writes to a terminal."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm", progress.SETTING: ""}
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, cwd=cwd, env=environment) as process:
        os.close(its)
        said = b""
        try:
            while part := os.read(ours, 65536):
                said += part
        except OSError:  # how Linux says that nobody writes any more
            pass
        os.close(ours)
    assert process.returncode == 0, said.decode()
    return said.decode()


def screen(said: str) -> list[str]:
    """Return the lines that are left of what was written: returns, upward moves and cleared lines obeyed."""
    lines, row, column, place = [""], 0, 0, 0
    while place < len(said):
        if found := COMMAND.match(said, place):
            place = found.end()
            number, name = found.groups()
            assert name in "AKmhl", found.group()
            if name == "A":
                row -= int(number)
            elif name == "K":
                lines[row] = ""
            continue
        letter, place = said[place], place + 1
        if letter == "\r":
            column = 0
        elif letter == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        else:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + letter + line[column + 1 :]
            column += 1
    return lines


@pytest.mark.slow
def test_bars_appear_while_a_run_goes_on_and_leave_nothing(tmp_path: Path) -> None:
    run = (sys.executable, "-m", "fedsim", *SMALL, "model=mlp", "attack=gauss_newton")
    said = at_terminal(*run, "attack.optimiser.iterations=2", "federation.rounds=2", cwd=tmp_path)
    for label, total in (("rounds", 2), ("clients", 3), ("attacks", 6), ("matching", 2)):
        assert re.search(rf"{label}[^\r\n]*━[^\r\n]*[/ ]{total}\b", said), (label, said)
    left = screen(said)
    assert not re.search("(rounds|clients|attacks|matching)[^\n]*━", "\n".join(left)), left
    assert left[0] == "test: 6 observations, 0 faults"
    assert "rounds" in "\n".join(screen(said[: said.index("clients")]))  # it was there
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l")  # the cursor is back
