"""A user's own texts, a line each."""

from pathlib import Path

import torch

from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.settings import number, whole
from fedsim.data.images import Dataset
from fedsim.data.texts import labelled_lines, text_data
from fedsim.data.wordpieces import SPECIAL

FEWEST = 4  # lines that make a training and a test half


def text_lines(
    *,
    path: str,
    length: int = 16,
    vocabulary: int = 1500,
    pieces: str | None = None,
    goal: str = "next",
    test_share: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Your own text file, a line a text, as word pieces; a label and a tab before each line make classes."""
    number("data.test_share", test_share, above=0, below=1)
    whole("data.vocabulary", vocabulary, 2 * len(SPECIAL))
    file = Path(path).expanduser().resolve()
    lines, labels, classes = labelled_lines(_content(file, "text_lines", "data.path"))
    if len(lines) < FEWEST:
        raise FedsimError(f"text_lines: {file}: expected at least {FEWEST} lines of text, got {len(lines)}")
    order = torch.randperm(len(lines), generator=generator(seed, "text_lines")).tolist()
    return text_data(
        [lines[place] for place in order],
        [labels[place] for place in order],
        classes=classes,
        length=length,
        vocabulary=vocabulary if pieces is None else _pieces(Path(pieces).expanduser()),
        goal=goal,
        test=max(1, round(test_share * len(lines))),
        source=f"text_lines: {file}",
    )


def _content(file: Path, name: str, setting: str) -> str:
    if not file.is_file():
        raise FedsimError(f"{name}: no such file: {file}. Remedy: set {setting} to a file of yours.")
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FedsimError(f"{name}: {file}: expected text in UTF-8 ({error})") from error


def _pieces(file: Path) -> tuple[str, ...]:
    found = tuple(_content(file, "text_lines", "data.pieces").splitlines())
    if missing := [mark for mark in SPECIAL if mark not in found]:
        raise FedsimError(
            f"data.pieces: {file}: expected a piece a line, {missing[0]} among them, as in BERT's vocab.txt"
        )
    return found
