"""What a server can tell of one planted example: epsilon measured, beside the one that is promised.

Papers: Nasr et al., Adversary Instantiation (2021), and Tight Auditing (2023): a lower bound by experiment.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.api.observe import observe
from fedsim.config.parts import parts
from fedsim.core.errors import FedsimError
from fedsim.core.gaussian_privacy import at_most, epsilon_of, least_epsilon, least_mu
from fedsim.core.interfaces import Defense
from fedsim.core.settings import number, whole
from fedsim.core.training import batch_gradient
from fedsim.core.types import Weights
from fedsim.lab.accounting import DELTA, noise_of_replies


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """Epsilon of one step, as measured and as promised."""

    least: float  # that the errors of the test allow, whatever the mechanism, at the confidence
    gaussian: float  # the same if its noise is Gaussian: closer to the truth
    promised: float | None  # by the defenses, of an example that is another; None: nothing
    false_positives: int
    false_negatives: int
    trials: int  # of each of the two errors
    delta: float
    confidence: float

    @property
    def broken(self) -> bool:
        """Whether more was told than is promised."""
        return self.promised is not None and max(self.least, self.gaussian) > self.promised

    def __str__(self) -> str:
        promised = "none" if self.promised is None else f"{self.promised:.2f}"
        return (
            f"epsilon of a step at delta {self.delta:g}: at least {self.least:.2f}, "
            f"{self.gaussian:.2f} if the noise is Gaussian (confidence {self.confidence:.0%}); "
            f"promised: {promised}; wrong {self.false_positives} and {self.false_negatives} "
            f"times of {self.trials}"
        )


def canaries(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    defenses: Sequence[Defense | str] = (),
    trials: int = 500,
    confidence: float = 0.95,
    seed: int = 0,
) -> Canaries:
    """Measure how surely a server tells which of two labels the first image of a batch has.

    It knows the model, the defenses and all other examples, as differential privacy assumes. It is asked so
    many `trials` of each kind twice: half of them set its threshold, the other half count its errors.
    """
    whole("canaries: trials", trials, least=10)
    number("canaries: confidence", confidence, above=0, below=1)
    chosen: tuple[Defense, ...] = parts("defense", defenses)
    delta = min((defense.delta for defense in chosen), default=DELTA)
    own = copy.deepcopy(model).eval()
    with torch.no_grad():
        likely = own(images[:1]).flatten().topk(2).indices.tolist()  # their gradients are the most opposite
    if len(likely) < 2:
        raise FedsimError("canaries: expected a model of at least two classes, got one")
    worlds = [torch.cat([torch.tensor([label]), labels[1:]]) for label in likely]
    direction = _direction(own, images[:1], likely)

    def score(world: int, trial: int) -> float:
        """Return how far a reply leans to the first label."""
        drawn = 2 * trial + world + 4 * trials * seed
        seen = observe(own, images, worlds[world], defenses=chosen, seed=drawn).received
        return sum(float((tensor.double() * direction[name]).sum()) for name, tensor in seen.items())

    scores = torch.tensor([[score(world, trial) for trial in range(2 * trials)] for world in (0, 1)])
    setting, counting = scores[:, :trials], scores[:, trials:]
    threshold = _threshold(setting, delta, confidence)
    wrong = [int((counting[1] >= threshold).sum()), int((counting[0] < threshold).sum())]
    each = 1 - (1 - confidence) / 2  # both bounds hold at the confidence
    positives, negatives = (at_most(errors, trials, each) for errors in wrong)
    promised = [
        defense.epsilon(sample_rate=1.0, steps=1, replaced=True)
        for defense in chosen
        if defense.delta == delta
    ]
    if noise := noise_of_replies(chosen):
        promised.append(epsilon_of(2 / noise, delta))
    return Canaries(
        least=least_epsilon(positives, negatives, delta),
        gaussian=epsilon_of(least_mu(positives, negatives), delta),
        promised=min((epsilon for epsilon in promised if epsilon is not None), default=None),
        false_positives=wrong[0],
        false_negatives=wrong[1],
        trials=trials,
        delta=delta,
        confidence=confidence,
    )


def _direction(model: nn.Module, image: Tensor, labels: Sequence[int]) -> Weights:
    """Return where the gradients of the two labels lie apart, each of length one, as clipped ones are."""
    ways = list[Weights]()
    for label in labels:
        gradient, _ = batch_gradient(model, image, torch.tensor([label]))
        length = torch.stack([tensor.double().norm() for tensor in gradient.values()]).norm().clamp(min=1e-30)
        ways.append({name: tensor.double() / length for name, tensor in gradient.items()})
    return {name: way - ways[1][name] for name, way in ways[0].items()}


def _threshold(scores: Tensor, delta: float, confidence: float) -> float:
    """Return the threshold between two rows of scores that would show the most."""
    trials = scores.shape[1]
    places = torch.quantile(scores.flatten().double(), torch.linspace(0, 1, 201, dtype=torch.float64))

    def shown(place: float) -> float:
        wrong = (int((scores[1] >= place).sum()), int((scores[0] < place).sum()))
        return epsilon_of(least_mu(*(at_most(errors, trials, confidence) for errors in wrong)), delta)

    return float(max(places.tolist(), key=shown))
