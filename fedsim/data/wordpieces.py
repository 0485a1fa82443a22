"""Word pieces: a vocabulary learnt from words, and texts cut into its pieces.

Paper: Sennrich et al., Neural Machine Translation of Rare Words with Subword Units (ACL 2016): the most
frequent pair of pieces becomes a piece. Pieces that go on with a word begin with ##, as in BERT's.
"""

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.core.inputs import Tokens

PADDING, UNKNOWN, BEGIN, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
SPECIAL = (PADDING, UNKNOWN, BEGIN, END)
LEAST = 2  # times that a pair must occur to become a piece
_WORDS = re.compile(r"\w+|[^\w\s]")


def words_of(text: str) -> list[str]:
    """Return the words and marks of a text, in small letters."""
    return _WORDS.findall(text.lower())


def learn(texts: Iterable[str], size: int) -> tuple[str, ...]:
    """Return a vocabulary of at most so many pieces: marks, letters, then the pairs that occur most."""
    counts = Counter(word for text in texts for word in words_of(text))
    pieces = {word: [word[0], *(f"##{letter}" for letter in word[1:])] for word in counts}
    letters = Counter(piece for word, own in pieces.items() for piece in own for _ in range(counts[word]))
    vocabulary = [*SPECIAL, *sorted(letters, key=lambda piece: (-letters[piece], piece))][:size]
    pairs, holders = Counter[tuple[str, str]](), dict[tuple[str, str], set[str]]()

    waiting = list[tuple[int, tuple[str, str]]]()  # a heap; entries whose count has changed are skipped

    def count(word: str, sign: int) -> None:
        for pair in zip(pieces[word], pieces[word][1:], strict=False):
            pairs[pair] += sign * counts[word]
            holders.setdefault(pair, set()).add(word)
            heapq.heappush(waiting, (-pairs[pair], pair))

    for word in pieces:
        count(word, 1)
    known = set(vocabulary)
    while len(vocabulary) < size and waiting:
        negative, best = heapq.heappop(waiting)
        if -negative < LEAST:
            break
        if pairs[best] != -negative:
            continue
        joined = best[0] + best[1].removeprefix("##")
        if joined not in known:  # two ways to the same piece
            known.add(joined)
            vocabulary.append(joined)
        for word in sorted(holders.pop(best)):
            count(word, -1)
            pieces[word] = _joined(pieces[word], best, joined)
            count(word, 1)
    return tuple(vocabulary)


def _joined(pieces: list[str], pair: tuple[str, str], joined: str) -> list[str]:
    made, place = list[str](), 0
    while place < len(pieces):
        if tuple(pieces[place : place + 2]) == pair:
            made.append(joined)
            place += 2
        else:
            made.append(pieces[place])
            place += 1
    return made


@dataclass(frozen=True, eq=False)
class WordPieces:
    """Cuts texts into the pieces of a vocabulary: of every word the longest that fits, again and again."""

    vocabulary: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", {piece: place for place, piece in enumerate(self.vocabulary)})
        object.__setattr__(self, "_cut", {})

    def cut(self, text: str) -> list[int]:
        """Return the numbers of a text's pieces."""
        known: dict[str, list[int]] = self._cut  # type: ignore[attr-defined]
        found = list[int]()
        for word in words_of(text):
            if word not in known:
                known[word] = self._pieces(word)
            found += known[word]
        return found

    def _pieces(self, word: str) -> list[int]:
        places: dict[str, int] = self._places  # type: ignore[attr-defined]
        found, first = list[int](), 0
        while first < len(word):
            start = "" if first == 0 else "##"
            for end in range(len(word), first, -1):
                if (place := places.get(start + word[first:end])) is not None:
                    found.append(place)
                    first = end
                    break
            else:
                return [places[UNKNOWN]]
        return found

    def form(self, length: int, *, continued: bool = False) -> Tokens:
        """Say what an input is: so many pieces, marks included."""
        place = self.vocabulary.index
        return Tokens(
            vocabulary=self.vocabulary,
            length=length,
            padding=place(PADDING),
            begin=None if continued else place(BEGIN),
            end=place(END),
            continued=continued,
        )


def sequences(cut: Sequence[Sequence[int]], form: Tokens) -> Tensor:
    """Return texts as int64 (N, length): between their marks, cut off or filled up."""
    rows = torch.full((len(cut), form.length), form.padding)
    before = [] if form.begin is None else [form.begin]
    behind = [] if form.end is None else [form.end]
    for row, pieces in zip(rows, cut, strict=True):
        whole = [*before, *pieces[: form.length - len(before) - len(behind)], *behind]
        row[: len(whole)] = torch.tensor(whole)
    return rows


def continuations(cut: Sequence[Sequence[int]], form: Tokens) -> tuple[Tensor, Tensor]:
    """Return texts without marks (N, length), and of every place the piece that comes next, then the end.

    Places behind a text's end have no next piece: -100, which cross-entropy leaves out.
    """
    assert form.end is not None
    inputs = torch.full((len(cut), form.length), form.padding)
    labels = torch.full((len(cut), form.length), -100)
    for row, nexts, pieces in zip(inputs, labels, cut, strict=True):
        shown = [*pieces, form.end][: form.length + 1]
        row[: len(shown) - 1] = torch.tensor(shown[:-1])
        nexts[: len(shown) - 1] = torch.tensor(shown[1:])
    return inputs, labels
