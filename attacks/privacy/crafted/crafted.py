"""What all attacks have in common that read images off a layer of chosen thresholds.

What leaks: the images of the batch and their labels; behind convolutions, what these carry of the images.
Paper: none of its own; those of imprint, trap_weights, soliton, loki and fishing, each in its file.
Assumes: the server chose the weights; a linear layer with ReLUs behind it; the gradient of one step.
Fails: after several local steps; with other activations; where clients do not say their number of examples.

An attack says which units to send; this class crafts them into the model, once or every k rounds, and peels
the images out of the replies. The model's form stays as it was: no layer is put in front.
"""

import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.crafted.decode import Peel
from fedsim.attacks.privacy.crafted.leftover import one_direction, search_directions, solve_bins
from fedsim.attacks.privacy.crafted.readout import (
    Place,
    Plan,
    Readout,
    carrying,
    crafted,
    entering,
    find_place,
    images_of,
    read,
)
from fedsim.attacks.privacy.stein.head import denormalised
from fedsim.core import settings
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, PublicImages, Reconstruction, Task, Weights

log = logging.getLogger(__name__)
RIDGE = 0.03  # of the features' mean square: what keeps a regression on few images from following each


class Crafted(Attack):
    """A server that sends thresholds, and peels the images out of what comes back."""

    keeps_honest = True  # a round of crafted weights teaches the global model nothing, and costs it nothing

    def __init__(
        self, *, public: PublicImages | None = None, every: int = 1, tolerance: float = 1e-3, seed: int = 0
    ) -> None:
        """Set the images that thresholds follow, and how often to craft; 0: in the first round alone."""
        self.public = public
        self.every = settings.whole("attack.every", every, 0)
        self.tolerance = settings.number("attack.tolerance", tolerance, above=0, below=1)
        self.seed = seed

    def plan(self, inputs: Tensor, units: int, random: torch.Generator) -> Plan:
        """Return the units to send; inputs (N, in): what enters the layer for images of the server's own."""
        raise NotImplementedError

    def crafts_in(self, round: int) -> bool:
        """Say whether this round's weights are crafted."""
        return round == 1 if self.every == 0 else (round - 1) % self.every == 0

    def craft(self, model: nn.Module, task: Task, round: int, weights: Weights) -> Weights:
        """Send the plan's units, behind convolutions that carry pixels to them."""
        place = find_place(model, task)
        sent = carrying(place, weights)
        inputs = entering(model, place, sent, images_of(task, self.public, self.seed))
        units = len(weights[f"{place.layer}.weight"])
        plan = self.plan(inputs, units, generator(self.seed, type(self).__name__, round))
        return crafted(place, sent, plan)

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model without a layer to read images off."""
        place = find_place(model, task)
        if place.carriage is not None and not place.carriage.exact:
            log.info("convolutions are a bottleneck: %s", place.carriage.summary)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Peel the images out of the readout layer's gradient."""
        started, observation = time.perf_counter(), observations[-1]
        place = find_place(model, task)
        readout = read(model, task, place, observation)
        size = self._examples(observation)
        claims.expect_images(size, task)
        peels = self.peels(model, task, place, readout, observation, size)
        if not any(len(peel) for peel in peels):
            raise FedsimError(
                f"no image was found in the gradient of layer {place.layer!r}. Remedy: rounds that this "
                "attack crafted, a wider layer, smaller batches, or weaker defenses."
            )
        inputs = torch.cat([peel.inputs for peel in peels])[:, :-1]
        images = self._images(model, task, place, observation, inputs)
        return _reconstruction(task, place, peels, images, size, time.perf_counter() - started)

    def _images(
        self, model: nn.Module, task: Task, place: Place, observation: Observation, inputs: Tensor
    ) -> Tensor:
        """Return images of what enters the readout layer; behind a bottleneck, as public images have them."""
        if place.carriage is None:
            return denormalised(task, inputs)
        if place.carriage.exact or self.public is None:
            return place.carriage.images(inputs, task)
        shown = entering(model, place, observation.sent, self.public.images).double()
        pixels = inputs.new_tensor(self.public.images.flatten(1).numpy())
        return regressed(shown, pixels, inputs).view(-1, *task.input_shape).clamp(0, 1).float()

    def peels(
        self,
        model: nn.Module,
        task: Task,
        place: Place,
        readout: Readout,
        observation: Observation,
        size: int,
    ) -> list[Peel]:
        """Return what was found: of one client, or of the sum over all."""
        random = generator(self.seed, "left over", observation.round, observation.client)
        return [self.peeled(readout, size, size, random)]

    def peeled(self, readout: Readout, size: int, most: int, random: torch.Generator) -> Peel:
        """Peel one gradient of `size` examples, then solve what peeling leaves; most: to be found in it."""
        peel = Peel(readout=readout, size=size, most=most, tolerance=self.tolerance)
        peel.search()
        if len(peel) < most:
            peel.drop(peel.certified())
            _ = solve_bins(peel) if one_direction(peel) else search_directions(peel, random)
            peel.search()
        return peel

    def _examples(self, observation: Observation) -> int:
        if observation.num_examples is None:
            raise FedsimError(
                "how many examples there are decides what error one of them has, and the clients do not say. "
                "Remedy: add num_examples to federation.disclose."
            )
        return observation.num_examples


def regressed(known: Tensor, pixels: Tensor, features: Tensor) -> Tensor:
    """Return the pixels (N, d) of features, by ridge regression on images of which both are known."""
    mean, level = known.mean(dim=0), pixels.mean(dim=0)
    centred = known - mean
    gram = centred.T @ centred
    gram = gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    found: Tensor = level + (features - mean) @ torch.linalg.solve(gram, centred.T @ (pixels - level))
    return found


def _reconstruction(
    task: Task, place: Place, peels: Sequence[Peel], images: Tensor, size: int, seconds: float
) -> Reconstruction:
    """Show what was found, certified where rows beside the one it was read off say the same."""
    inputs = torch.cat([peel.inputs for peel in peels])[:, :-1]
    labels = torch.cat([peel.labels for peel in peels])
    certified = torch.cat([peel.certified() for peel in peels])
    whole = len(inputs) == size and bool(certified.all())
    carriage = place.carriage
    exact = carriage is None or carriage.exact
    counts = labels.bincount(minlength=task.num_classes) if whole else None
    return Reconstruction(
        images=images,
        labels=labels if exact else None,
        embeddings=None if exact else inputs.float(),
        embedding_layer=None if exact else place.layer,
        class_counts=counts,
        class_presence=None if counts is None else counts > 0,
        certified=certified if exact else None,  # of pixels: behind a bottleneck nobody knows them
        residual=max(peel.unexplained for peel in peels),
        seconds=seconds,
    )
