"""Images whose gradient is the observed one: gradient matching, assembled from parts.

What leaks: the images of the batch, and their labels where they are searched for too.
Paper: Zhu et al., Deep Leakage from Gradients (NeurIPS 2019); Geiping et al., Inverting Gradients
    (NeurIPS 2020); Yin et al., See through Gradients (CVPR 2021); labels as in Ma et al. (ICLR 2023).
Assumes: the loss is cross-entropy; the batch size is disclosed or restored; an update's local steps are
    disclosed (they are played inside the objective).
Fails: gently with many images, repeated labels, deep and trained models, noise and sparse gradients.
"""

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.matching.known_features import known_features
from fedsim.attacks.privacy.matching.labels import FixedLabels, Joint, LabelSource, agreeing
from fedsim.attacks.privacy.matching.learnt import Learnt
from fedsim.attacks.privacy.matching.linear_layers import linear_chain, linear_names
from fedsim.attacks.privacy.matching.objectives import Objective
from fedsim.attacks.privacy.matching.optimisers import Optimiser
from fedsim.attacks.privacy.matching.outcome import reconstruction
from fedsim.attacks.privacy.matching.parametrisations import Pixels, Span, expect_image
from fedsim.attacks.privacy.matching.priors import BatchNormStatistics, Prior
from fedsim.attacks.privacy.matching.problem import Problem, Variables, expect_room, private_copy
from fedsim.attacks.privacy.matching.rows import Rows
from fedsim.attacks.privacy.matching.starts import Start
from fedsim.attacks.privacy.matching.target import compared
from fedsim.attacks.privacy.matching.watch import Diverged, TimeIsUp, Watch
from fedsim.attacks.privacy.matching.within import found_by
from fedsim.core import progress, settings
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Interrupted, Observation, Reconstruction, Task, Weights

log = logging.getLogger(__name__)
ATTEMPTS = 3  # new seeds for a restart that diverges


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
        features: Attack | None = None,
        features_weight: float = 1.0,
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

        first: an attack whose images to start from. features: an exact attack whose features images must
        have, with their labels. parametrisation: `pixels`, or `span` for models whose
        first layer is linear. candidates: guesses that are searched together, the best of which counts:
        restarts as one batch, and what group consistency compares. ensemble: the candidates are pooled, not
        chosen from; for parametrisation=rows, or with features, which tell whose image is which.
        seconds: time budget of the search; `first` has its own. layers: beginnings of the names of the
        tensors to compare.
        known_only: leave out entries that are exactly zero, as a sparsifying client sends them; also done
            when the attacker knows of such a defense.
        """
        optimiser.check(objective, priors, terms=features is not None)
        self.objective = objective
        self.labels = labels
        self.start = start
        self.optimiser = optimiser
        self.priors = tuple(priors)
        self.prior = ", ".join(prior.learnt.name for prior in self.priors if isinstance(prior, Learnt))
        self.first, self.features = first, features
        if features is not None and isinstance(labels, Joint):
            raise FedsimError(
                "attack.features: they have labels. Remedy: labels of a label attack, not Joint."
            )
        self.features_weight = settings.number("attack.features_weight", features_weight, least=0)
        self.parametrisation = settings.one_of(
            "attack.parametrisation", parametrisation, ("pixels", "span", "rows")
        )
        self.restarts = settings.whole("attack.restarts", restarts)
        self.candidates = settings.whole("attack.candidates", candidates)
        self.ensemble = settings.switch("attack.ensemble", ensemble)
        if ensemble and parametrisation != "rows" and features is None:
            raise FedsimError(
                f"attack.ensemble: expected parametrisation=rows or attack.features, got {parametrisation}. "
                "Remedy: false."
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
        begun = found_by(self.first, "first", model, task, observations)
        exact = found_by(self.features, "features", model, task, observations)
        for known in (begun, exact):
            if fixed is not None and known is not None and known.labels is not None:
                fixed = agreeing(fixed, known)
        problem = self._problem(model, task, observations[-1], fixed, exact)
        expect_room(problem, model, self.optimiser.copies)
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
        alone: Tensor | None = None
        if not interrupted:
            try:
                alone = self._prior_alone(problem)
            except KeyboardInterrupt:
                interrupted = True
        guess = reconstruction(
            problem,
            best,
            fixed,
            self.labels,
            ensemble=self.ensemble,
            prior_alone=alone,
            seconds=time.perf_counter() - started,
        )
        if interrupted:
            raise Interrupted(guess)
        return guess

    def _problem(
        self,
        model: nn.Module,
        task: Task,
        observation: Observation,
        fixed: FixedLabels | None,
        exact: Reconstruction | None = None,
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
        told = None
        if exact is not None and fixed is not None:
            told = known_features(own, task, exact, size, self.features_weight)
        target, used = compared(observation, own, self.layers, () if told is None else told.behind)
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
            and told is None
            and not any(isinstance(prior, BatchNormStatistics) for prior in self.priors),  # both hook layers
            steps=steps,
            learning_rate=learning_rate,
            labels=None if fixed is None else fixed.labels.to(device),
            parametrisation=parametrisation.to(device=device, dtype=self.dtype),
            distance=self.objective.towards(target),
            penalties=(
                *(prior.on(own, task) for prior in self.priors),
                *(() if told is None else (told.penalty,)),
            ),
            loss=functional.cross_entropy if told is None else told.loss,
        )

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

    def _prior_alone(self, problem: Problem) -> Tensor | None:
        """Return what learnt priors make of a first guess without gradient, features and labels."""
        if not any(isinstance(prior, Learnt) for prior in self.priors):
            return None
        alone = dataclasses.replace(
            problem,
            target=(),
            penalties=tuple(prior.on(problem.model, problem.task) for prior in self.priors),
            candidates=1,
            labels=torch.zeros(problem.size),
            parametrisation=Pixels(problem.task).to(problem.parametrisation.mean),
        )
        watch = Watch(time.perf_counter() + self.seconds, lambda done, note: None)
        self._search(alone, None, 0, watch)
        images = [alone.parametrisation.pixels(best[: problem.size].detach()) for best in watch.best[:1]]
        return images[0].clamp(0, 1).float().cpu() if images else None

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


def _advance(advance: Callable[..., None], before: int, done: int, note: str) -> None:
    advance(before + done, note)
