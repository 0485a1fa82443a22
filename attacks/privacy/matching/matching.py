"""Images whose gradient is the observed one: gradient matching, assembled from parts.

What leaks: the images of the batch, and their labels where they are searched for too.
Paper: Zhu et al., Deep Leakage from Gradients (NeurIPS 2019); Geiping et al., Inverting Gradients
    (NeurIPS 2020); Yin et al., See through Gradients (CVPR 2021); labels as in Ma et al. (ICLR 2023).
Assumes: the loss is cross-entropy; the batch size is disclosed or restored; an update's local steps are
    disclosed (they are played inside the objective).
Fails: gently with many images, repeated labels, deep and trained models, noise and sparse gradients.
"""

import functools
import logging
import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.matching.labels import FixedLabels, Joint, LabelSource, agreeing
from fedsim.attacks.privacy.matching.linear_layers import linear_chain, linear_names
from fedsim.attacks.privacy.matching.module_calls import outputs_size
from fedsim.attacks.privacy.matching.objectives import Objective
from fedsim.attacks.privacy.matching.optimisers import Optimiser
from fedsim.attacks.privacy.matching.parametrisations import Pixels, Span, expect_image
from fedsim.attacks.privacy.matching.priors import BatchNormStatistics, Prior
from fedsim.attacks.privacy.matching.problem import Problem, Variables, private_copy
from fedsim.attacks.privacy.matching.rows import Rows
from fedsim.attacks.privacy.matching.starts import Start
from fedsim.attacks.privacy.matching.target import compared
from fedsim.attacks.privacy.matching.watch import Diverged, TimeIsUp, Watch
from fedsim.core import progress, settings
from fedsim.core.errors import FedsimError, in_words
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Interrupted, Observation, Reconstruction, Task, Weights

log = logging.getLogger(__name__)
ATTEMPTS = 3  # new seeds for a restart that diverges
TRACE = 500  # points that are kept of an objective's curve
COPIES = 4  # of what every layer gives, while a gradient is differentiated


class Matching(Attack):
    """Gradient matching: an objective, priors, labels, a start, an optimiser, restarts."""

    def __init__(
        self,
        *,
        objective: Objective,
        labels: LabelSource,
        start: Start,
        optimiser: Optimiser,
        priors: Sequence[Prior] = (),
        first: Attack | None = None,
        parametrisation: str = "pixels",
        restarts: int = 1,
        candidates: int = 1,
        ensemble: bool = False,
        seconds: float | None = None,
        layers: Sequence[str] | None = None,
        known_only: bool = False,
        double: bool = False,
        seed: int = 0,
    ) -> None:
        """Put the parts together.

        first: an attack whose images to start from. parametrisation: `pixels`, or `span` for models whose
        first layer is linear. candidates: guesses that are searched together, the best of which counts:
        restarts as one batch, and what group consistency compares. ensemble: the candidates are pooled, not
        chosen from; for parametrisation=rows.
        seconds: time budget of the search; `first` has its own. layers: beginnings of the names of the
        tensors to compare.
        known_only: leave out entries that are exactly zero, as a sparsifying client sends them; also done
            when the attacker knows of such a defense.
        """
        optimiser.check(objective, priors)
        self.objective = objective
        self.labels = labels
        self.start = start
        self.optimiser = optimiser
        self.priors = tuple(priors)
        self.first = first
        self.parametrisation = settings.one_of(
            "attack.parametrisation", parametrisation, ("pixels", "span", "rows")
        )
        self.restarts = settings.whole("attack.restarts", restarts)
        self.candidates = settings.whole("attack.candidates", candidates)
        self.ensemble = settings.switch("attack.ensemble", ensemble)
        if ensemble and parametrisation != "rows":
            raise FedsimError(
                f"attack.ensemble: expected parametrisation=rows, got {parametrisation}. Remedy: false."
            )
        self.seconds = settings.seconds("attack.seconds", seconds)
        settings.optional(settings.listed, "attack.layers", layers, "a list of names", settings.word, 0)
        self.layers = None if layers is None else tuple(layers)
        self.known_only = known_only
        self.dtype = torch.float64 if double else torch.float32
        self.seed = seed

    def crafts(self) -> bool:
        """Say whether the attack to start from broadcasts weights of its own."""
        return self.first is not None and self.first.crafts()

    def craft(self, model: nn.Module, task: Task, round: int, weights: Weights) -> Weights:
        """Broadcast what the attack to start from wants."""
        return weights if self.first is None else self.first.craft(model, task, round, weights)

    def crafts_in(self, round: int) -> bool:
        """Say whether it does so in this round."""
        return self.first is not None and self.first.crafts_in(round)

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model whose labels cannot be restored, or whose first layer has no span."""
        self.labels.check(model, task)
        if self.parametrisation == "span":
            chain = linear_names(model, task)
            expect_image(chain.names[0], chain.begins_with_image)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Search for the images of the observed batch."""
        started = time.perf_counter()
        claims.expect_images(claims.checked(observations[-1]).num_examples or 1, task)
        fixed = self.labels.fixed(model, task, observations)
        begun = self._begin_with(model, task, observations)
        if fixed is not None and begun is not None and begun.labels is not None:
            fixed = agreeing(fixed, begun)
        problem = self._problem(model, task, observations[-1], fixed)
        self._expect_room(model, problem)
        best: Watch | None = None
        interrupted = False
        with progress.bar("matching", self.restarts * self.optimiser.iterations) as advance:
            for number in range(self.restarts):
                shown = functools.partial(_advance, advance, number * self.optimiser.iterations)
                watch = Watch(started + self.seconds, shown)
                try:
                    self._search(problem, begun, number, watch)
                except KeyboardInterrupt:
                    interrupted = True
                if watch.best and (best is None or watch.value < best.value):
                    best = watch
                if interrupted or time.perf_counter() > started + self.seconds:
                    break
        if best is None:
            if interrupted:
                raise KeyboardInterrupt
            raise FedsimError(
                f"the search diverged from {ATTEMPTS} seeds in each of {self.restarts} restarts. "
                "Remedy: a smaller attack.optimiser.step."
            )
        if begun is None and len(best.trace) > 1 and best.value >= best.trace[0]:
            log.warning("the search never improved on its start. Remedy: a smaller attack.optimiser.step")
        guess = self._reconstruction(problem, best, fixed, time.perf_counter() - started)
        if interrupted:
            raise Interrupted(guess)
        return guess

    def _begin_with(
        self, model: nn.Module, task: Task, observations: Sequence[Observation]
    ) -> Reconstruction | None:
        """Return what `first` recovers; one that fails only costs the search its good start."""
        if self.first is None:
            return None
        try:
            return self.first.run(model, task, observations)
        except Exception as error:
            log.warning("attack.first: %s; the search begins at random", in_words(error))
            return None

    def _problem(
        self, model: nn.Module, task: Task, observation: Observation, fixed: FixedLabels | None
    ) -> Problem:
        device = next(model.parameters()).device
        own = private_copy(model, observation, self.dtype, device)
        size = observation.num_examples
        if size is None and fixed is not None:
            size = len(fixed.labels)
        if size is None:
            raise FedsimError(
                "attack: the clients do not disclose their batch size. Remedy: add num_examples to "
                "federation.disclose, or take labels from a label attack, which estimates it."
            )
        if fixed is not None and len(fixed.labels) != size:
            raise FedsimError(f"attack.labels: expected {size} labels, got {len(fixed.labels)}")
        target, used = compared(observation, own, self.layers)
        left_out = self.known_only or (observation.defense is not None and observation.defense.zeros)
        steps, learning_rate = claims.local_training(observation)
        if size % steps:
            raise FedsimError(f"{size} examples do not divide into {steps} local steps of equal batches")
        parametrisation = Pixels(task)
        if self.parametrisation == "rows":
            parametrisation = Rows(task)
        if self.parametrisation == "span":
            parametrisation = Span(task, linear_chain(model, task, observation)[0][0], size)
        return Problem(
            round=observation.round,
            client=observation.client,
            task=task,
            model=own,
            weights=dict(own.named_parameters()),
            target=target,
            used=used,
            known=tuple((tensor != 0).to(self.dtype) for tensor in target) if left_out else None,
            size=size,
            candidates=self.candidates,
            together=self.candidates > 1
            and learning_rate is None
            and observation.batch_norm == "eval"
            and not any(isinstance(prior, BatchNormStatistics) for prior in self.priors),  # it hooks layers
            steps=steps,
            learning_rate=learning_rate,
            labels=None if fixed is None else fixed.labels.to(device),
            parametrisation=parametrisation.to(device=device, dtype=self.dtype),
            distance=self.objective.towards(target),
            penalties=tuple(prior.on(own) for prior in self.priors),
        )

    def _expect_room(self, model: nn.Module, problem: Problem) -> None:
        """Refuse a batch whose search does not fit into memory."""
        claims.expect_images(problem.size, problem.task)
        images, pixels = problem.size * problem.candidates, math.prod(problem.task.input_shape)
        inside = images * outputs_size(model, problem.task)
        inside += problem.steps * sum(tensor.numel() for tensor in problem.weights.values())
        numbers = COPIES * inside + self.optimiser.copies * images * pixels
        device, size_in_bytes = problem.target[0].device, numbers * torch.finfo(self.dtype).bits // 8
        claims.expect_memory(size_in_bytes, device, f"the search for {problem.size} images")

    def _search(self, problem: Problem, begun: Reconstruction | None, number: int, watch: Watch) -> None:
        """Run one restart; one that diverges begins again from a new seed."""
        for attempt in range(ATTEMPTS):
            random = generator(self.seed, "matching", problem.round, problem.client, number, attempt)
            variables = self._begin(problem, begun, random)
            try:
                if variables[0].numel() == 0:  # the span of one image is a point
                    watch.see(problem.value_and_slopes(variables)[0], variables)
                else:
                    self.optimiser.minimise(problem, variables, watch)
            except TimeIsUp:
                return
            except Diverged:
                log.warning("restart %d diverged after %d steps: begins again", number, len(watch.trace))
                watch.forget()
            else:
                return

    def _begin(self, problem: Problem, begun: Reconstruction | None, random: torch.Generator) -> Variables:
        """Return first variables: drawn images, the first of them replaced by those of `first`."""
        images = self.start.draw(problem.candidates * problem.size, problem.task, random)
        images = images.to(problem.parametrisation.mean)
        if begun is not None and begun.images is not None:
            known = begun.images[: problem.size].to(images)
            known = (known - problem.parametrisation.mean) / problem.parametrisation.std
            for part in torch.split(images, problem.size):
                part[: len(known)] = known
        variables = [problem.parametrisation.point(images)]
        if problem.labels is None:
            assert isinstance(self.labels, Joint)
            variables.append(self.labels.draw(problem.size, problem.task, random).to(images))
        return variables

    def _reconstruction(
        self, problem: Problem, best: Watch, fixed: FixedLabels | None, seconds: float
    ) -> Reconstruction:
        """Choose the candidate whose gradient is nearest, and say what was recovered."""
        variables = [variable.detach() for variable in best.best]
        labels = problem.labels_of(variables)
        parts = torch.split(problem.parametrisation.images(variables[0]), problem.size)
        residuals = [problem.residual(part, labels) for part in parts]
        chosen = min(range(len(parts)), key=residuals.__getitem__)
        images, residual = parts[chosen], residuals[chosen]
        if self.ensemble and isinstance(problem.parametrisation, Rows):
            images = problem.parametrisation.pooled(parts, chosen, labels)
            residual = problem.residual(images, labels)
        pixels = problem.parametrisation.pixels(images).clamp(0, 1).float().cpu()
        if fixed is not None:
            labelled = fixed.recovered or Reconstruction()
        else:
            assert isinstance(self.labels, Joint)
            labelled = self.labels.read(variables[1], problem.size)
        return Reconstruction(
            images=pixels,
            class_counts=labelled.class_counts,
            class_presence=labelled.class_presence,
            trace=_thinned(best.trace),
            residual=residual,
            seconds=seconds,
        )


def _advance(advance: Callable[..., None], before: int, done: int, note: str) -> None:
    advance(before + done, note)


def _thinned(trace: list[float]) -> tuple[float, ...]:
    """Keep some points of a curve, the last one among them."""
    if len(trace) <= TRACE:
        return tuple(trace)
    return (*trace[:: -(-len(trace) // TRACE)], trace[-1])
