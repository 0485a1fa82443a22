"""Sentences from candidates: whole inputs of deeper layers must lie in the spans of those layers, too."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from fedsim.attacks.privacy.text.spans import LIKELY, Span
from fedsim.attacks.privacy.text.structure import entering
from fedsim.core import progress
from fedsim.core.inputs import Tokens

STARTS = 12  # descents for every text that is wanted, while they find nothing new
MOST = 4  # prefixes that are kept for every text that is wanted


@dataclass(frozen=True, kw_only=True, eq=False)
class Puzzle:
    """What is known when sentences are to be put together."""

    model: nn.Module
    form: Tokens
    candidates: Sequence[Tensor]  # tokens that may stand at each place
    settled: Sequence[Tensor]  # those that surely stand there: most texts are made of them
    rough: tuple[str, Span]  # the first layer that sees other tokens: cheap
    sure: tuple[str, Span]  # the layer with the most features: what fits it is right
    wanted: int  # texts
    moved: nn.Module | None = None  # the model that came back, where inputs moved during local steps

    def excess(self, sequences: Tensor) -> Tensor:
        """Return how far every place (N, length) is from fitting the sure layer: about 1 is right."""
        name, span = self.sure
        rows = entering(self.model, name, sequences)
        return span.excess(rows, drift_of(self.moved, name, sequences, rows))

    def doubt(self, text: Tensor) -> float | None:
        """Return how far the worst place of a text (length,) is from fitting; None: it does not."""
        excess = float(self.excess(text[None])[0][text != self.form.padding].max())
        return excess if excess <= LIKELY else None

    def fits(self, check: tuple[str, Span], sequences: Tensor) -> Tensor:
        """Return how far the last place of sequences (N,) is from fitting a layer."""
        name, span = check
        if not len(sequences):
            return torch.zeros(0, dtype=torch.float64)
        rows = entering(self.model, name, sequences)
        drift = drift_of(self.moved, name, sequences, rows)
        return span.excess(rows[:, -1], None if drift is None else drift[:, -1])

    def mismatch(self, sequences: Tensor) -> Tensor:
        """Return how far whole sequences (N,) are from fitting the rough layer."""
        name, span = self.rough
        shares = span.distances(entering(self.model, name, sequences)).square()
        shown = sequences != self.form.padding
        mean: Tensor = (shares * shown).sum(dim=1) / shown.sum(dim=1)
        return mean.sqrt()


def drift_of(moved: nn.Module | None, name: str, sequences: Tensor, rows: Tensor) -> Tensor | None:
    """Return how far what enters a layer (N, length, features) went while the model moved; None: nowhere."""
    return None if moved is None else (entering(moved, name, sequences) - rows).double().norm(dim=-1)


def grown(puzzle: Puzzle) -> tuple[Tensor, Tensor]:
    """Return the texts (N, length) of a decoder, token by token, and their largest excess.

    A place depends on earlier ones alone: every prefix is tried with every candidate.
    """
    form = puzzle.form
    empty = torch.full((1, form.length), form.padding)
    prefixes, worst = empty, torch.zeros(1, dtype=torch.float64)
    done, doubts = list[Tensor](), list[Tensor]()
    with progress.bar("tokens", form.length) as advance:
        for place, tokens in enumerate(puzzle.candidates):
            if not len(prefixes):
                break
            tried = prefixes.repeat_interleave(len(tokens), dim=0)
            tried[:, place] = tokens.repeat(len(prefixes))
            origin = torch.arange(len(prefixes)).repeat_interleave(len(tokens))
            likely = puzzle.fits(puzzle.rough, tried[:, : place + 1]) <= LIKELY  # spares most of the work
            tried, origin = tried[likely], origin[likely]
            excess = puzzle.fits(puzzle.sure, tried[:, : place + 1])
            fits = excess <= LIKELY
            ended = torch.ones(len(prefixes), dtype=torch.bool)
            ended[origin[fits]] = False
            if place:
                done.append(prefixes[ended])
                doubts.append(worst[ended])
            best = excess.masked_fill(~fits, torch.inf).argsort()[
                : min(int(fits.sum()), MOST * puzzle.wanted)
            ]
            prefixes, worst = tried[best], torch.maximum(worst[origin[best]], excess[best])
            advance(place + 1)
    done.append(prefixes)
    doubts.append(worst)
    return _best(torch.cat(done), torch.cat(doubts), puzzle)


def _best(texts: Tensor, doubts: Tensor, puzzle: Puzzle) -> tuple[Tensor, Tensor]:
    """Return the longest texts, and of those the surest, where there are more than wanted."""
    lengths = (texts != puzzle.form.padding).sum(dim=1)
    order = sorted(range(len(texts)), key=lambda i: (-int(lengths[i]), float(doubts[i])))
    order = order[: puzzle.wanted]
    return texts[order], doubts[order]


def descended(
    puzzle: Puzzle, known: Mapping[tuple[int, ...], float], random: Generator, deadline: float
) -> tuple[Tensor, Tensor]:
    """Return the texts of an encoder, whole: from random ones to better ones, a token or several at a time.

    Every descent keeps one token in its place that no text found so far explains. known: texts and doubts.
    """
    found, idle = dict(known), 0
    length, form = puzzle.form.length, puzzle.form
    explained = [{text[place] for text in found} for place in range(length)]
    with progress.bar("texts", puzzle.wanted) as advance:
        while len(found) < puzzle.wanted and idle < STARTS * (puzzle.wanted - len(found) + 1):
            if time.perf_counter() > deadline:
                break
            open_pairs = [
                (place, token)
                for place, tokens in enumerate(puzzle.candidates)
                for token in tokens.tolist()
                if token not in explained[place] and token not in (form.begin, form.end)
            ]
            text = _descent(puzzle, open_pairs, explained, random)
            idle += 1
            if text is None or tuple(text.tolist()) in found:
                continue
            if (doubt := puzzle.doubt(text)) is not None:
                found[tuple(text.tolist())], idle = doubt, 0
                for place in range(length):
                    explained[place].add(int(text[place]))
                advance(len(found))
    texts = torch.tensor(list(found)) if found else torch.zeros(0, length, dtype=torch.int64)
    return texts, torch.tensor(list(found.values()), dtype=torch.float64)


def _descent(
    puzzle: Puzzle, open_pairs: Sequence[tuple[int, int]], explained: Sequence[set[int]], random: Generator
) -> Tensor | None:
    """Return the text where no single change makes a better one, from a random start."""
    options = _options(puzzle, open_pairs, explained, random)
    if options is None:
        return None
    text = torch.full((puzzle.form.length,), puzzle.form.padding)
    for place, (tokens, preferred) in enumerate(options):
        pool = preferred if len(preferred) else tokens
        text[place] = pool[int(torch.randint(len(pool), (), generator=random))]
    best = float(puzzle.mismatch(text[None]))
    for stage in (1, 0):  # first among what surely stands somewhere, then among all
        changeable = [(place, own[stage]) for place, own in enumerate(options) if len(own[stage]) > 1]
        text, best = _improved(puzzle, text, best, changeable)
    return text


def _improved(
    puzzle: Puzzle, text: Tensor, best: float, changeable: Sequence[tuple[int, Tensor]]
) -> tuple[Tensor, float]:
    """Return a text where no change of one place fits better, and how far it is from fitting."""
    while changeable:
        tried = torch.cat([_replaced(text, place, tokens) for place, tokens in changeable])
        scores = puzzle.mismatch(tried)
        together, first = text.clone(), 0  # every place's best change at once
        for place, tokens in changeable:
            own = scores[first : first + len(tokens)]
            if float(own.min()) < best:
                together[place] = tokens[int(own.argmin())]
            first += len(tokens)
        one, all_at_once = int(scores.argmin()), float(puzzle.mismatch(together[None]))
        lowest = min(float(scores[one]), all_at_once)
        if lowest >= best:
            break
        text, best = (together if all_at_once < float(scores[one]) else tried[one]), lowest
    return text, best


def _options(
    puzzle: Puzzle, open_pairs: Sequence[tuple[int, int]], explained: Sequence[set[int]], random: Generator
) -> list[tuple[Tensor, Tensor]] | None:
    """Return what may stand at every place of a text of random length, and what to try first."""
    form, candidates = puzzle.form, puzzle.candidates
    anchor = open_pairs[int(torch.randint(len(open_pairs), (), generator=random))] if open_pairs else None
    least = (0 if anchor is None else anchor[0]) + 1
    ends = [
        place
        for place in range(max(1, least), form.length)
        if form.end is None or bool((candidates[place] == form.end).any())
    ]
    if not ends:
        return None
    end = ends[int(torch.randint(len(ends), (), generator=random))]
    options = list[tuple[Tensor, Tensor]]()
    for place in range(end + (form.end is None)):
        if place == 0 and form.begin is not None:
            tokens = torch.tensor([form.begin])
        elif anchor is not None and place == anchor[0]:
            tokens = torch.tensor([anchor[1]])
        else:
            marks = torch.tensor(sorted(form.special))
            tokens = candidates[place][~torch.isin(candidates[place], marks)]
        if not len(tokens):
            return None
        likely = tokens[torch.isin(tokens, puzzle.settled[place])]
        new = likely[~torch.isin(likely, torch.tensor(sorted(explained[place]), dtype=torch.int64))]
        options.append((tokens, new if len(new) else likely))
    if form.end is not None:
        options.append((torch.tensor([form.end]), torch.tensor([form.end])))
    return options


def _replaced(text: Tensor, place: int, tokens: Tensor) -> Tensor:
    made = text.expand(len(tokens), -1).clone()
    made[:, place] = tokens
    return made
