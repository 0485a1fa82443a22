"""Whole sentences, exactly, from the gradient of a transformer.

What leaks: every text of the batch, token by token, where the batch holds fewer different tokens and places
    than the model has features; otherwise, or where only embeddings leak, its bag of words.
Paper: Petrov et al., DAGER: Exact Gradient Inversion for Large Language Models (NeurIPS 2024). Not in it: the
    threshold that follows the noise, the places by the embeddings' gradients, and encoders by the errors of
    the first attention (companions.py), what is left by descent on its contexts.
Assumes: attention over tokens, weights of linear layers among what is received, no dropout; better with
    num_examples, which bounds the ranks. Learning rate and steps need not be known.
Fails: more tokens than features; noise above the smallest singular values; several local steps at large
    rates; encoders whose texts are longer than a head has units, or of many texts without the gradients of
    embeddings: then their bag of words is what is left.

A linear layer's gradient has the row space of its inputs: a pair (token, place) is in the batch only if its
embedding lies in that of the first attention. Deeper layers see whole contexts: a sentence is right if all
its inputs lie in theirs. Decoders grow it token by token; of encoders, what comes back to the queries of a
sentence is a sum over its own keys, which tells its words. Behind much noise texts are told, not certified.
"""

import copy
import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.text.assembly import Puzzle, descended, drift_of, grown
from fedsim.attacks.privacy.text.attention import attention_of
from fedsim.attacks.privacy.text.companions import pairs_of
from fedsim.attacks.privacy.text.deflation import peeled
from fedsim.attacks.privacy.text.embeddings import tables_of
from fedsim.attacks.privacy.text.places import standing
from fedsim.attacks.privacy.text.spans import CLEAR, Span, span_of
from fedsim.attacks.privacy.text.structure import Structure, entering, gradient_of, structure_of
from fedsim.core import settings
from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Tokens
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.training import load_weights
from fedsim.core.types import Observation, Reconstruction, Task

log = logging.getLogger(__name__)
CHUNK = 1000  # tokens of the vocabulary that are looked up at once
UNTOLD = 32  # texts at most, where clients do not tell how many


class Dager(Attack):
    """Texts by the spans of a transformer's gradients, each certified by a deeper layer."""

    def __init__(self, *, use_embeddings: bool = True, seconds: float | None = None, seed: int = 0) -> None:
        """Set whether gradients of embedding tables may be used, and the time for encoders' texts."""
        self.use_embeddings = settings.switch("attack.use_embeddings", use_embeddings)
        self.seconds = settings.seconds("attack.seconds", seconds)
        self.seed = seed

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse data without tokens, and models without attention."""
        ones = {name: torch.ones_like(parameter) for name, parameter in model.named_parameters()}
        structure_of(model, tokens_of(task), ones)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Look tokens up in the first layer's span, and put them together by deeper ones."""
        started, seen = time.perf_counter(), claims.checked(observations[-1])
        form, received = tokens_of(task), seen.received
        structure = structure_of(model, form, received)
        wanted = seen.num_examples or UNTOLD
        most = wanted * form.length
        spans = [(group[0], _span(model, group, seen, most)) for group in structure.local]
        spans = _fullest([(name, span) for name, span in spans if not span.full])
        tables = tables_of(model, form, received) if self.use_embeddings else None
        if not spans and tables is None:
            raise FedsimError(
                "dager: every token lies in the span of the first layer's gradient, so it tells none. "
                "Remedy: smaller batches or shorter texts: fewer different tokens than features."
            )
        words = None if tables is None else tables.present
        moved = _moved(model, seen)
        candidates = _looked_up(model, moved, form, spans, words)
        if words is None and not any(map(len, candidates)):
            raise FedsimError(
                "dager: no token lies in the span of the first layer's gradient: it is too small, or behind "
                "too much noise. Remedy: smaller batches, or a larger rank of LoRA."
            )
        sure = [own[:0] for own in candidates]
        if tables is not None and tables.places is not None and structure.norm and not structure.causal:
            candidates, sure = _narrowed(model, structure.norm, candidates, tables.tokens, tables.places)
        if (alone := _only(form, candidates)) is not None and wanted == 1:
            rows = [(span, entering(model, name, alone)[0, alone[0] != form.padding]) for name, span in spans]
            excess = torch.tensor([max(float(span.excess(own).max()) for span, own in rows)])
            texts, clear = alone, max(span.clarity for span, _ in rows) >= CLEAR
        else:
            texts, excess, clear = _texts(
                model, task, structure, (candidates, sure), seen, wanted, self.seed, started + self.seconds
            )
        presence = torch.zeros(len(form.vocabulary), dtype=torch.bool)
        presence[torch.cat(list(candidates)) if words is None else words] = True
        if len(texts) < wanted:
            log.warning("%d of %d texts were put together; the bag of words is told", len(texts), wanted)
        return Reconstruction(
            tokens=texts if len(texts) else None,
            token_presence=presence,
            certified=torch.full((len(texts),), clear) if len(texts) else None,
            residual=float(excess.max()) if len(texts) else None,
            seconds=time.perf_counter() - started,
        )


def tokens_of(task: Task) -> Tokens:
    """Return what a task's texts are, or refuse a task without any."""
    if not isinstance(task.inputs, Tokens):
        raise FedsimError(
            "expected texts of tokens, got data that has none. Remedy: data=shakespeare_small or text_lines."
        )
    return task.inputs


def _span(model: nn.Module, group: Sequence[str], seen: Observation, most: int) -> Span:
    gradient = gradient_of(model, group, seen.received)
    told = None if seen.defense is None else seen.defense.deviation(gradient)
    return span_of(gradient, most, told)


def _fullest(spans: Sequence[tuple[str, Span]]) -> list[tuple[str, Span]]:
    """Return the spans of most inputs: others miss some.

    A decoder's first place has no query to speak of, and a classifier's last layer hears one place.
    """
    most = max((len(span.basis) for _, span in spans), default=0)
    return [(name, span) for name, span in spans if len(span.basis) == most]


def _moved(model: nn.Module, seen: Observation) -> nn.Module | None:
    """Return the model as it came back, where several local steps, or nobody knows how many, moved it."""
    if seen.kind == "gradient" or seen.local_steps == 1:
        return None
    moved = copy.deepcopy(model)
    load_weights(moved, {name: tensor + seen.received[name] for name, tensor in seen.sent.items()})
    return moved


def _looked_up(
    model: nn.Module,
    moved: nn.Module | None,
    form: Tokens,
    spans: Sequence[tuple[str, Span]],
    words: Tensor | None,
) -> list[Tensor]:
    """Return the tokens of every place whose embeddings lie in all spans."""
    known = torch.arange(len(form.vocabulary)) if words is None else words
    known = known[known != form.padding]
    found = torch.zeros(form.length, len(known), dtype=torch.bool)
    for first in range(0, len(known), CHUNK):
        part = known[first : first + CHUNK]
        holds = torch.ones(len(part), form.length, dtype=torch.bool)
        for name, span in spans:
            sequences = part[:, None].expand(-1, form.length)
            rows = entering(model, name, sequences)
            drift = drift_of(moved, name, sequences, rows)
            near = span.holds(rows.flatten(0, 1), None if drift is None else drift.flatten())
            holds &= near.view(holds.shape)
        found[:, first : first + CHUNK] = holds.T
    return [known[own] for own in found]


def _only(form: Tokens, candidates: Sequence[Tensor]) -> Tensor | None:
    """Return the one text (1, length) that candidates leave, if they leave one."""
    lengths = [len(own) for own in candidates]
    told = sum(lengths)
    if not told or lengths != [1] * told + [0] * (len(lengths) - told):
        return None
    text = torch.full((1, form.length), form.padding)
    text[0, :told] = torch.cat(list(candidates))
    return text


def _narrowed(
    model: nn.Module, norm: str, candidates: Sequence[Tensor], tokens: Tensor, places: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Keep the candidates that may stand at a place by the gradients of both embedding tables, or must."""
    words = torch.unique(torch.cat(list(candidates)))
    inside = entering(model, norm, words[:, None].expand(-1, len(places)))
    here, surely = standing(tokens[words], places, inside)
    sure = [own[torch.isin(own, words[surely[:, place]])] for place, own in enumerate(candidates)]
    kept = [own[torch.isin(own, words[here[:, place]])] for place, own in enumerate(candidates)]
    return [few if len(few) else own for few, own in zip(kept, candidates, strict=True)], sure


def _texts(
    model: nn.Module,
    task: Task,
    structure: Structure,
    candidates: tuple[Sequence[Tensor], Sequence[Tensor]],
    seen: Observation,
    wanted: int,
    seed: int,
    deadline: float,
) -> tuple[Tensor, Tensor, bool]:
    """Return the texts, how far each is from fitting, and whether what fits is right for certain."""
    form = tokens_of(task)
    most = wanted * form.length
    checks = [(name, _span(model, [name], seen, most)) for name in structure.contextual]
    checks = _fullest([(name, span) for name, span in checks if not span.full])
    if not checks:
        return torch.zeros(0, form.length, dtype=torch.int64), torch.zeros(0), False
    puzzle = Puzzle(
        model=model,
        form=form,
        candidates=candidates[0],
        settled=candidates[1],
        rough=checks[0],
        sure=max(checks, key=lambda check: check[1].outside.shape[1]),
        wanted=wanted,
        moved=_moved(model, seen),
    )
    clear = puzzle.sure[1].clarity >= CLEAR and puzzle.moved is None
    if structure.causal:
        return *grown(puzzle), clear
    found = _peeled(puzzle, structure, seen, task.num_classes)
    chance = generator(seed, "dager", seen.round, seen.client)
    return *descended(puzzle, found, chance, deadline), clear


def _peeled(
    puzzle: Puzzle, structure: Structure, seen: Observation, classes: int
) -> dict[tuple[int, ...], float]:
    """Return the texts that the errors of the first attention show, where it is of the usual kind."""
    model, form, group = puzzle.model, puzzle.form, structure.local[0]
    attention = attention_of(model, form, group, structure.contextual[0])
    if attention is None or form.length >= attention.head:
        return {}
    tokens = torch.cat(list(puzzle.candidates))
    places = torch.cat([torch.full((len(own),), place) for place, own in enumerate(puzzle.candidates)])
    words, own = torch.unique(tokens, return_inverse=True)
    rows = entering(model, group[0], words[:, None].expand(-1, form.length))[own, places].double()
    return peeled(
        model,
        form,
        attention,
        pairs_of(model, attention, tokens, places, rows),
        seen.received,
        classes=classes,
        wanted=puzzle.wanted,
        doubt=puzzle.doubt,
    )
