"""Texts whose gradient is the observed one: embeddings searched for, and then looked up.

What leaks: an approximation of the texts of a small batch; few of its sentences whole.
Paper: Deng et al., TAG: Gradient Attack on Transformer-based Language Models (EMNLP Findings 2021); Balunovic
    et al., LAMP: Extracting Text from Gradients with Language Model Priors (NeurIPS 2022). Not in them: words
    by the embeddings' gradients, lengths that are searched for, and a prior of public texts, not of GPT-2.
Assumes: texts to classify, cross-entropy; the batch size disclosed or restored; an update's local steps
    disclosed; no dropout. Where embeddings are trained, only words of the batch are looked up.
Fails: with more than a few texts, with long ones, behind noise; where dager is exact, it is far behind.

Embeddings of tokens take the place of pixels in gradient matching. Between searches LAMP moves whole tokens:
a move counts if the gradient fits better, with a text's surprise by pairs of public texts added.
"""

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.matching.labels import FixedLabels, Joint, LabelSource
from fedsim.attacks.privacy.matching.objectives import Objective
from fedsim.attacks.privacy.matching.optimisers import Optimiser
from fedsim.attacks.privacy.matching.priors import Prior
from fedsim.attacks.privacy.matching.problem import Problem, private_copy
from fedsim.attacks.privacy.matching.target import compared
from fedsim.attacks.privacy.matching.watch import Diverged, TimeIsUp, Watch
from fedsim.attacks.privacy.text.dager import tokens_of
from fedsim.attacks.privacy.text.embeddings import tables_of
from fedsim.attacks.privacy.text.rearranging import moved, unusual, usual_pairs
from fedsim.attacks.privacy.text.soft_embeddings import Embeddings, FromEmbeddings, table_of
from fedsim.core import progress, settings
from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Tokens
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, PublicImages, Reconstruction, Task

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Guess:
    value: float  # of the objective
    point: Tensor
    lengths: Tensor
    trace: tuple[float, ...] = ()


class TextMatching(Attack):
    """Gradient matching over embeddings: searches, with moves of whole tokens between them."""

    def __init__(
        self,
        *,
        objective: Objective,
        labels: LabelSource,
        optimiser: Optimiser,
        priors: Sequence[Prior] = (),
        public: PublicImages | None = None,
        phases: int = 1,
        moves: int = 0,
        surprise: float = 0.0,
        restarts: int = 1,
        lengths: Sequence[int] | None = None,
        use_embeddings: bool = True,
        seconds: float | None = None,
        seed: int = 0,
    ) -> None:
        """Put the parts together.

        public: texts that say which tokens follow which. phases: searches one after the other; moves: of
        whole tokens that are tried between them. surprise: its weight beside the objective in a move.
        lengths: tokens of each text, marks included, where the server knows them, as the papers assume.
        """
        optimiser.check(objective, priors)
        self.objective = objective
        self.labels = labels
        self.optimiser = optimiser
        self.priors = tuple(priors)
        self.public = public
        self.phases = settings.whole("attack.phases", phases)
        self.moves = settings.whole("attack.moves", moves, 0)
        self.surprise = settings.number("attack.surprise", surprise, least=0)
        self.restarts = settings.whole("attack.restarts", restarts)
        length = functools.partial(settings.whole, least=3)
        settings.optional(settings.listed, "attack.lengths", lengths, "numbers of tokens", length, 1)
        self.lengths = None if lengths is None else tuple(lengths)
        self.use_embeddings = settings.switch("attack.use_embeddings", use_embeddings)
        self.seconds = settings.seconds("attack.seconds", seconds)
        self.seed = seed

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse data without texts to classify, and labels that cannot be restored."""
        if tokens_of(task).continued:
            raise FedsimError(
                "expected texts to classify, got texts to continue, whose labels are their own tokens. "
                "Remedy: data.goal=class, or attack=dager, which is exact there."
            )
        if isinstance(self.labels, Joint):
            raise FedsimError("attack.labels: expected labels restored or given. Remedy: labels.Restored.")
        self.labels.check(model, task)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Search for the texts of the observed batch."""
        started, form = time.perf_counter(), tokens_of(task)
        self.check(model, task)
        seen, fixed = claims.checked(observations[-1]), self.labels.fixed(model, task, observations)
        assert fixed is not None
        tables = tables_of(model, form, seen.received) if self.use_embeddings else None
        words = torch.arange(len(form.vocabulary)) if tables is None else tables.present
        words = words[~torch.isin(words, torch.tensor(sorted(form.special)))]
        problem = self._problem(model, task, seen, fixed)
        pairs = None if self.public is None else usual_pairs(self.public.images, form)
        guesses, deadline = list[_Guess](), started + self.seconds
        with progress.bar("texts", self.restarts * self.phases * self.optimiser.iterations) as advance:
            for number in range(self.restarts):
                random = generator(self.seed, "text_matching", seen.round, seen.client, number)
                before = number * self.phases * self.optimiser.iterations
                shown = functools.partial(_advance, advance, before)
                guesses += self._searched(problem, words, pairs, random, Watch(deadline, shown))
                if time.perf_counter() > deadline:
                    break
        if not guesses:
            raise FedsimError("the search diverged in every restart. Remedy: a smaller optimiser.step.")
        best = min(guesses, key=lambda guess: guess.value)
        parts = _embeddings(problem)
        parts.lengths = best.lengths
        texts = parts.nearest(best.point, words if len(words) else torch.arange(len(form.vocabulary)))
        presence = torch.zeros(len(form.vocabulary), dtype=torch.bool)
        presence[texts.flatten() if tables is None else tables.present] = True
        labelled = fixed.recovered or Reconstruction()
        assert problem.labels is not None
        return Reconstruction(
            tokens=texts,
            token_presence=presence,
            class_counts=labelled.class_counts,
            class_presence=labelled.class_presence,
            trace=best.trace,
            residual=problem.residual(parts.images(parts.embedded(texts)), problem.labels),
            seconds=time.perf_counter() - started,
        )

    def _problem(self, model: nn.Module, task: Task, seen: Observation, fixed: FixedLabels) -> Problem:
        form, labels = tokens_of(task), fixed.labels
        size, (steps, rate) = seen.num_examples or len(labels), claims.local_training(seen)
        if len(labels) != size or size % steps:
            raise FedsimError(
                f"attack: expected labels of {size} texts in {steps} equal steps, got {len(labels)}. "
                "Remedy: other labels, or local batches of one size."
            )
        own = private_copy(model, seen, torch.float32, torch.device("cpu"))
        table, name = table_of(own, form)
        claims.expect_room(size * form.length * table.shape[1], f"the search for {size} texts")
        own.requires_grad_(requires_grad=True)
        soft = FromEmbeddings(own, form, table)
        target, used = _without(name, *compared(seen, own, None), own)
        return Problem(
            round=seen.round,
            client=seen.client,
            task=task,
            model=soft,
            weights=dict(soft.named_parameters()),
            target=target,
            used=used,
            known=tuple((t != 0).float() for t in target) if seen.defense and seen.defense.zeros else None,
            size=size,
            candidates=1,
            together=False,
            steps=steps,
            learning_rate=rate,
            labels=labels,
            parametrisation=Embeddings(form, table, self._first_lengths(own, form, seen, size)),
            distance=self.objective.towards(target),
            penalties=tuple(prior.on(soft, task) for prior in self.priors),
        )

    def _first_lengths(self, model: nn.Module, form: Tokens, seen: Observation, size: int) -> Tensor:
        """Return the texts' lengths, as far as they are known: places behind the longest get no gradient."""
        if self.lengths is not None:
            if len(self.lengths) != size or max(self.lengths) > form.length:
                raise FedsimError(
                    f"attack.lengths: expected {size} of at most {form.length}, got {list(self.lengths)}"
                )
            return torch.tensor(self.lengths)
        tables, longest = tables_of(model, form, seen.received) if self.use_embeddings else None, form.length
        if tables is not None and tables.places is not None:
            longest = int(tables.places.abs().amax(dim=1).nonzero().max()) + 1
        return torch.full((size,), longest)

    def _searched(
        self, problem: Problem, words: Tensor, pairs: Tensor | None, random: Generator, watch: Watch
    ) -> list[_Guess]:
        """Return what one restart ends with; nothing if it diverges at once."""
        parts = _embeddings(problem)
        parts.lengths = parts.lengths.clone()
        point, best, traced = torch.randn(problem.size, *parts.shape, generator=random), math.inf, []
        try:
            for phase in range(self.phases):
                if phase and self.moves:
                    point = self._rearranged(problem, point, words, pairs, random, watch)
                watch.forget()
                try:
                    self.optimiser.minimise(problem, [point.clone()], watch)
                except Diverged:
                    log.warning("a search diverged after %d steps", len(watch.trace))
                if watch.best:
                    point, best = watch.best[0].clone(), watch.value
                traced += watch.trace
        except TimeIsUp:
            if watch.best:
                point, best = watch.best[0].clone(), watch.value
        if best == math.inf:
            return []
        kept = tuple(traced[:: max(1, len(traced) // 500)])
        return [_Guess(value=best, point=point.detach(), lengths=parts.lengths, trace=kept)]

    def _rearranged(
        self,
        problem: Problem,
        point: Tensor,
        words: Tensor,
        pairs: Tensor | None,
        random: Generator,
        watch: Watch,
    ) -> Tensor:
        """Return the point after the drawn moves that make it fit better; lengths stay with the problem."""
        parts, first = _embeddings(problem), 0 if tokens_of(problem.task).begin is None else 1

        def cost(candidate: Tensor, lengths: Tensor) -> float:
            parts.lengths = lengths
            assert problem.labels is not None
            guess = problem.compared(parts.images(candidate), problem.labels)
            value = problem.distance([tensor.detach() for tensor in guess])[0]
            if pairs is None or not self.surprise:
                return value
            return value + self.surprise * unusual(parts.nearest(candidate, words), pairs, parts.form)

        point, lengths = point.detach(), parts.lengths
        least = cost(point, lengths)
        for _ in range(self.moves):
            if time.perf_counter() > watch.deadline:
                break
            other, ends = moved(point, lengths, first, self.lengths is None, random)
            if (value := cost(other, ends)) < least:
                point, lengths, least = other, ends, value
        parts.lengths = lengths
        return point


def _embeddings(problem: Problem) -> Embeddings:
    assert isinstance(problem.parametrisation, Embeddings)
    return problem.parametrisation


def _without(
    table: str | None, target: tuple[Tensor, ...], used: tuple[bool, ...], model: nn.Module
) -> tuple[tuple[Tensor, ...], tuple[bool, ...]]:
    """Leave out the gradient of the table itself: embeddings that are no tokens have no rows in it."""
    names = [name for name, _ in model.named_parameters()]
    kept = tuple(tensor for name, tensor in zip(names, target, strict=True) if name != table)
    return kept, tuple(is_used and name != table for name, is_used in zip(names, used, strict=True))


def _advance(advance: progress.Advance, before: int, done: int, note: str) -> None:
    advance(before + done, note)
