"""Whole batches, exactly, from the gradients of two successive linear layers of an honest model.

What leaks: every image of the batch to float precision, with its label, where the model is fully connected;
    the features into the first linear layer, example by example, behind convolutions.
Paper: none; beyond Geiping et al. (NeurIPS 2020) and the sparsity argument of SPEAR (Dimitrov et al., 2024).
    One example alone is the classic division of a linear layer's gradients.
Assumes: two linear layers with biases in a row, the first of at least about 4 K units, the second of at
    least K; one gradient step. Any activation, trained or not; neither labels nor batch size needed.
Fails: with K near a quarter of the width or more, behind noise and sparsification, on several local steps.

Let [G1 | g1] = D1^T [X | 1] and [G2 | g2] = D2^T [A | 1] be the gradients of both layers, where A is
f(X W1^T + b1). The rows of [X | 1] span the row space of the first, those of [A | 1] the row space of the
second. So an image of the batch is a point x of the first space (K - 1 unknowns) whose [f(W1 x + b1) | 1]
lies in the second: as many equations as the layer has units, for each image on its own. Damped Gauss-Newton
from random starts finds one image or another. Each image found is then peeled off: its rows of D1 and D2 are
the one solution of d1 = f'(z) * (W2^T d2) in the two column spaces, its outer products are subtracted, and
the search goes on in a smaller space.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.least_squares import fit
from fedsim.attacks.privacy.matching.linear_layers import LinearLayer, linear_chain, linear_names, row_space
from fedsim.attacks.privacy.matching.membership import Activation, Membership, derivative, with_one
from fedsim.attacks.privacy.matching.problem import private_copy
from fedsim.core import progress, settings
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Interrupted, Observation, Reconstruction, Task

log = logging.getLogger(__name__)
SAME = 1e-3  # of the typical length: two points nearer than this are one image
PATIENCE = 12  # rounds of starts without a new image before the search ends


class Peeling(Attack):
    """Exact batches from two linear layers: find an image, subtract it, go on."""

    def __init__(
        self,
        *,
        starts: int = 64,
        steps: int = 20,
        tolerance: float = 1e-4,
        seconds: float | None = None,
        seed: int = 0,
    ) -> None:
        """Set the random starts of a round, the steps from each, and the residual that passes for an image.

        tolerance: distance from the second layer's space. Exact gradients give 1e-6, wrong points 1e-1.
        """
        self.starts = settings.whole("attack.starts", starts)
        self.steps = settings.whole("attack.steps", steps)
        self.tolerance = settings.number("attack.tolerance", tolerance, above=0)
        self.seconds = settings.seconds("attack.seconds", seconds)
        self.seed = seed

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model without a linear layer."""
        linear_names(model, task)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Recover the inputs of the first linear layer, one by one."""
        started = time.perf_counter()
        observation = claims.checked(observations[-1])
        layers, between = linear_chain(model, task, observation)
        first, rank = layers[0], layers[0].rank
        size = observation.num_examples or rank
        if size is None:
            raise FedsimError(
                "the gradient does not show how many examples it is of. "
                "Remedy: add num_examples to federation.disclose."
            )
        if first.task_shape is not None:  # equal images are shown as often as they are there
            claims.expect_images(size, task)
        different = size if rank is None else min(size, rank)  # equal images are one
        if different > 1 and len(layers) < 2:
            raise FedsimError(
                "peeling a batch needs two linear layers in a row, and the model has one. Remedy: attack=ig."
            )
        if different > 1:  # an image has K - 1 coordinates and units + 1 - K equations
            first.expect_room(different, each=2)
            layers[1].expect_room(different)
            room = self.starts * different * (len(first.weight) + different)
            claims.expect_room(room, f"{self.starts} starts for {different} examples")
        second, act = (layers[1], between[0]) if different > 1 else (first, nn.Identity())
        peel = Peel.of(first, second, act, different)
        interrupted = False
        try:
            self._search(peel, observation, started + self.seconds)
        except KeyboardInterrupt:
            interrupted = True
        if not len(peel.inputs):
            if interrupted:
                raise KeyboardInterrupt
            raise FedsimError(
                f"none of the {size} inputs of layer {first.name!r} was found. Remedy: attack=ig; "
                "peeling needs exact gradients of one step, and four times as many units as images."
            )
        if len(peel.inputs) < different:
            log.warning("found %d of %d inputs of layer %r", len(peel.inputs), different, first.name)
        guess = _reconstruction(model, task, observation, first, peel, size)
        guess = dataclasses.replace(guess, seconds=time.perf_counter() - started)
        if interrupted:
            raise Interrupted(guess)
        return guess

    def _search(self, peel: "Peel", observation: Observation, deadline: float) -> None:
        random, idle = generator(self.seed, "peeling", observation.round, observation.client), 0
        with progress.bar("peeling", peel.size) as advance:
            while len(peel.inputs) < peel.size and idle < PATIENCE and time.perf_counter() < deadline:
                fresh = peel.search(self.starts, self.steps, self.tolerance, random)
                idle = 0 if fresh else idle + 1
                advance(len(peel.inputs))


def _reconstruction(
    model: nn.Module, task: Task, observation: Observation, first: LinearLayer, peel: "Peel", size: int
) -> Reconstruction:
    """Say what was found: images with their labels, or features."""
    rows = peel.inputs[:, :-1]
    if first.task_shape is None:
        return Reconstruction(embeddings=rows.float(), embedding_layer=first.name, residual=peel.residual)
    mean, std = (torch.tensor(v, dtype=torch.float64).view(1, -1, 1, 1) for v in (task.mean, task.std))
    images = (rows.view(-1, *task.input_shape) * std + mean).clamp(0, 1).float()
    labels, copies = read_labels(model, task, observation, first.name, images, peel.errors, size)
    images, labels = images.repeat_interleave(copies, dim=0), labels.repeat_interleave(copies)
    counts = labels.bincount(minlength=task.num_classes) if len(images) == size else None
    return Reconstruction(
        images=images,
        labels=labels,
        class_counts=counts,
        class_presence=None if counts is None else counts > 0,
        residual=peel.residual,
    )


@dataclass(eq=False)
class Peel:
    """The two layers' gradients, and what was found in them so far."""

    first: Tensor  # [G1 | g1]
    second: Tensor  # [G2 | g2]
    weight: Tensor  # [W1 | b1]
    next_weight: Tensor  # W2
    act: Activation
    size: int
    columns: tuple[Tensor, Tensor]  # orthonormal bases of both gradients' column spaces
    whole: Membership
    inputs: Tensor  # (found, in + 1): [x | 1]
    outputs: Tensor  # (found, out + 1): [f(z) | 1]
    errors: Tensor  # (found, out): rows of D1
    next_errors: Tensor  # (found, next out): rows of D2
    residuals: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, first: LinearLayer, second: LinearLayer, act: Activation, size: int) -> "Peel":
        """Begin with the layers' whole gradients."""
        weight = torch.cat([first.weight, first.bias[:, None]], dim=1)
        one, two = first.augmented, second.augmented
        columns = tuple(torch.linalg.svd(m, full_matrices=False)[0][:, :size] for m in (one, two))
        return cls(
            first=one,
            second=two,
            weight=weight,
            next_weight=second.weight,
            act=act,
            size=size,
            columns=(columns[0], columns[1]),
            whole=Membership(one, two, weight, act, size),
            inputs=one.new_empty(0, one.shape[1]),
            outputs=one.new_empty(0, two.shape[1]),
            errors=one.new_empty(0, len(one)),
            next_errors=one.new_empty(0, len(two)),
        )

    @property
    def scale(self) -> float:
        """The typical length of an input, from the pooled one."""
        bias = self.first[:, -1]
        return float((bias @ self.first[:, :-1]).norm() / bias.dot(bias))

    @property
    def residual(self) -> float:
        """The worst distance of a found input's activations from their space, or what is left of G1."""
        explained = fit(self.inputs.T, self.first.T).T @ self.inputs
        unexplained = float((self.first - explained).norm() / self.first.norm())
        return max([unexplained, *self.residuals])

    def search(self, starts: int, steps: int, tolerance: float, random: torch.Generator) -> int:
        """Look for inputs that are left, from random starts; return how many new ones were found."""
        left = self.size - len(self.inputs)
        first = self.first - self.errors.T @ self.inputs
        if left == 1:  # one outer product: its rows are the input
            row = row_space(first, 1)[0]
            candidates = (row / row[-1])[None]
            candidates = candidates[candidates.isfinite().all(dim=1)]
        else:
            rest = Membership(
                first, self.second - self.next_errors.T @ self.outputs, self.weight, self.act, left
            )
            spread = torch.empty(starts, 1).uniform_(math.log(0.5), math.log(4), generator=random).exp()
            lengths = spread.double() * self.scale / math.sqrt(left - 1)
            points = torch.randn(starts, left - 1, generator=random, dtype=torch.float64) * lengths
            points, residuals = rest.descend(points, steps)
            candidates = rest.inputs(points[residuals < 30 * tolerance])
        before = len(self.inputs)
        if self.size == 1 and len(candidates):
            self.inputs = candidates
            self.errors = (self.first @ candidates[0] / candidates[0].dot(candidates[0]))[None]
        elif len(candidates):
            # The peeled gradients carry the errors of all subtractions; the whole ones do not.
            points, residuals = self.whole.descend(self.whole.points(self._distinct(candidates)), 8)
            for point, residual in zip(points, residuals.tolist(), strict=True):
                if residual < tolerance and len(self.inputs) < self.size:
                    self._keep(point, residual)
        return len(self.inputs) - before

    def _distinct(self, candidates: Tensor) -> Tensor:
        kept = list[Tensor]()
        for row in candidates:
            if all(float((row - other).norm()) > SAME * self.scale for other in (*kept, *self.inputs)):
                kept.append(row)
        return torch.stack(kept) if kept else candidates[:0]

    def _keep(self, point: Tensor, residual: float) -> None:
        """Add an input, with the rows of D1 and D2 that belong to it."""
        row = self.whole.inputs(point[None])
        if len(self._distinct(row)) == 0:
            return
        values = row @ self.weight.T
        slopes = derivative(self.act, values)[0]
        one, two = self.columns
        system = torch.cat([one, -slopes[:, None] * (self.next_weight.T @ two)], dim=1)
        null = torch.linalg.svd(system, full_matrices=False)[2][-1]
        error, next_error = one @ null[: self.size], two @ null[self.size :]
        # [G1 | g1] = D1^T [X | 1], so the input is 1 on its own error through the pseudo-inverse.
        through = fit(self.first @ self.whole.basis.T, error[:, None])[:, 0]
        factor = 1 / through.dot(self.whole.basis @ row[0])
        self.residuals.append(residual)
        self.inputs = torch.cat([self.inputs, row])
        self.outputs = torch.cat([self.outputs, with_one(self.act(values))])
        self.errors = torch.cat([self.errors, factor * error[None]])
        self.next_errors = torch.cat([self.next_errors, factor * next_error[None]])


def read_labels(
    model: nn.Module,
    task: Task,
    observation: Observation,
    layer: str,
    images: Tensor,
    errors: Tensor,
    size: int,
) -> tuple[Tensor, Tensor]:
    """Read the label of each image from its error at the first layer, and how often the image is there.

    The error is J^T (p - y) / K for the one label y: the direction tells y, and the length, where the
    learning rate is known, how many equal images it stands for.
    """
    own = private_copy(model, observation, torch.float64, torch.device("cpu"))
    leaving = list[Tensor]()
    own.get_submodule(layer).register_forward_hook(lambda module, inputs, output: leaving.append(output))
    logits = own(images.double())
    by_class = torch.stack(
        [
            torch.autograd.grad(logits[:, c].sum(), leaving[0], retain_graph=True)[0]
            for c in range(logits.shape[1])
        ]
    )  # (C, N, units)
    mean = torch.einsum("nc,cnu->nu", logits.detach().softmax(dim=1), by_class)
    guesses = (mean - by_class) / size
    scale = 1.0 if observation.kind == "gradient" else -(observation.learning_rate or 1.0)
    cosines = nn.functional.cosine_similarity(guesses, errors / scale, dim=2)
    labels: Tensor = cosines.argmax(dim=0)
    copies = torch.ones(len(images), dtype=torch.int64)
    if len(images) < size and (observation.kind == "gradient" or observation.learning_rate is not None):
        chosen = guesses[labels, torch.arange(len(images))]
        copies = (
            ((errors / scale).norm(dim=1) / chosen.norm(dim=1).clamp(min=1e-300)).round().long().clamp(min=1)
        )
        if int(copies.sum()) > size:
            copies = torch.ones_like(copies)
    return labels, copies
