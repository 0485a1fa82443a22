"""Run folders that were damaged: truncated, flipped, missing, foreign; and what a command makes of them."""

import contextlib
import io
import os
import random
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedsim.commands.cli import main
from fedsim.storage.runfolder import RunFolder


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    status: int
    errors: str
    crash: str  # an exception that nobody turned into words


def damage(folder: Path, random: random.Random) -> str:
    """Damage a file of a folder, and say how."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "log.txt")
    path = random.choice(files)
    how = random.choice(DAMAGES)
    how(path, random)
    return f"{how.__name__} {path.relative_to(folder)}"


def truncated(path: Path, random: random.Random) -> None:
    """Cut off the end."""
    os.truncate(path, random.randrange(max(1, path.stat().st_size)))


def flipped(path: Path, random: random.Random) -> None:
    """Flip one bit or some."""
    content = bytearray(path.read_bytes())
    for _ in range(random.choice([1, 1, 2, 9]) if content else 0):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def missing(path: Path, random: random.Random) -> None:
    """Delete."""
    path.unlink()


def foreign(path: Path, random: random.Random) -> None:
    """Put another file in its place: of the same folder, or of nobody's."""
    others = [other for other in path.parent.iterdir() if other.is_file()]
    content = random.choice([b"", b"\x00" * 4096, b"{}", b"[" * 100_000, random.choice(others).read_bytes()])
    path.write_bytes(content)


def added(path: Path, random: random.Random) -> None:
    """Add a file that looks like one of ours."""
    name = re.sub(r"\d+", lambda found: str(int(found[0]) + random.choice([0, 1, 97])), path.name)
    shutil.copy(path, path.with_name(name if name != path.name else f"{name}.copy"))


def replaced_by_a_folder(path: Path, random: random.Random) -> None:
    """Make a folder of it."""
    path.unlink()
    path.mkdir()


def unreadable_lines(path: Path, random: random.Random) -> None:
    """Drop a line of text."""
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[random.randrange(max(1, len(lines))) :][:1]
    if lines:
        del lines[random.randrange(len(lines))]
    path.write_bytes(b"".join(lines))


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    *(truncated, flipped, flipped, missing, foreign, added),
    *(replaced_by_a_folder, unreadable_lines),
)


def called(*arguments: str) -> Outcome:
    """Call `fedsim` in this process."""
    before, errors = sys.argv, io.StringIO()
    sys.argv = ["fedsim", *arguments]
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            main()
    except SystemExit as end:
        return Outcome(int(end.code or 0), errors.getvalue(), "")
    except BaseException as error:
        return Outcome(-1, errors.getvalue(), f"{type(error).__name__}: {error}")
    finally:
        sys.argv = before
    return Outcome(0, errors.getvalue(), "")


def page_words(folder: Path) -> str:
    """Return a page without pictures, date, seconds and paths."""
    page = (folder / "report.html").read_text()
    return re.sub(r'src="data:[^"]*"|<dt>(date|time)</dt><dd>[^<]*</dd>|/[^<\s]*', "", page)


def judged(copy: Path, command: str, sound: Path) -> tuple[str, Outcome]:
    """Run a command on a damaged copy of a folder; say whether it complained, was right, or was wrong.

    sound: the folder that the command makes of an undamaged one.
    """
    out = copy.with_name(f"{copy.name} out") if command == "replay" else copy
    more = ("metric=[leacc,lnacc,irec]", f"hydra.run.dir={out}") if command == "replay" else ()
    outcome = called(command, str(copy), *more)
    if outcome.crash or "Traceback" in outcome.errors:
        return "crashed", outcome
    if outcome.status != 0:
        return ("complained" if outcome.errors.startswith("fedsim: ") else "ended without a word"), outcome
    if command == "report":
        return ("right" if page_words(out) == page_words(sound) else "wrong"), outcome
    found, expected = RunFolder(out), RunFolder(sound)
    if found.scores() == expected.scores() and found.history() == expected.history():
        return "right", outcome
    # An observation that cannot be read is a fault of its own, and the others are scored.
    named = {(row.round, row.client) for row in found.scores() if row.metric == "fault"}
    kept = [row for row in found.scores() if (row.round, row.client) not in named]
    same = [row for row in expected.scores() if (row.round, row.client) not in named]
    return ("complained" if named and kept == same else "wrong"), outcome
