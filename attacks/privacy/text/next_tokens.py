"""How often each token comes next in a batch, from the output layer of a language model alone.

What leaks: the multiset of next tokens: the words of the batch but for the first of each text.
Paper: none; the counts of labels behind a softmax (attack=labels), of a vocabulary.
Assumes: next-token cross-entropy, an output layer of its own with a bias, one gradient step or several small
    ones; nobody has to tell how many texts or tokens there are.
Fails: gently with training: of a token that the model expects all over the batch, only the fewest is certain;
    without a bias, or behind noise above one token's share of the mean.

The bias gradient of token j is g_j = (sum_i p_ij - n_j) / M over the M places that have a next token, and no
probability is below zero: n_j >= -M g_j, rounded up. M itself is the number that the bounds add up to; where
the model is trained and they do not, at least the gradient's rank, and few places are told by head_peeling.
"""

import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.exact.certificates import noisy_spaces
from fedsim.attacks.privacy.exact.counting import at_least
from fedsim.attacks.privacy.exact.head_peel import HeadPeel
from fedsim.attacks.privacy.matching.linear_layers import LinearLayer
from fedsim.attacks.privacy.text.dager import tokens_of
from fedsim.attacks.privacy.text.spans import span_of
from fedsim.core import progress, settings
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, Reconstruction, Task

log = logging.getLogger(__name__)
MOST = 2**20  # places with a next token
FEW = 32  # different places up to which those that bounds leave open are searched for


class NextTokens(Attack):
    """Counts of the next tokens of a batch, by the gradient of a language model's output layer."""

    def __init__(self, *, seconds: float | None = 60, seed: int = 0) -> None:
        """Set the time for tokens that bounds leave open."""
        self.seconds = settings.seconds("attack.seconds", seconds)
        self.seed = seed

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse data whose labels are no next tokens, and models without a biased output layer."""
        if not tokens_of(task).continued:
            raise FedsimError(
                "next_tokens: expected texts to be continued, got texts to classify. Remedy: data.goal=next."
            )
        output_layer(model, task)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Count them."""
        self.check(model, task)
        started, seen = time.perf_counter(), claims.checked(observations[-1])
        layer = _layer(model, output_layer(model, task), seen)
        rank = len(span_of(layer.augmented, min(layer.augmented.shape) - 1).basis)
        noise = noisy_spaces(layer.augmented, rank)[0].noise
        size, counts = _counted(layer.bias_gradient, rank, noise)
        bounds = torch.stack([counts, counts + max(0, size - int(counts.sum()))])
        if int(counts.sum()) < size and rank <= FEW:
            counts = self._searched(layer, size, rank, seen, started)
            bounds = torch.stack([counts, counts + max(0, size - int(counts.sum()))])
        if int(counts.sum()) < size:
            log.warning("%d of about %d next tokens are not told", size - int(counts.sum()), size)
        presence = counts > 0
        return Reconstruction(
            class_counts=counts,
            class_presence=presence,
            count_bounds=bounds,
            token_presence=presence,
            seconds=time.perf_counter() - started,
        )

    def _searched(
        self, layer: LinearLayer, size: int, rank: int, seen: Observation, started: float
    ) -> Tensor:
        """Return the counts with those of tokens that head_peeling finds place by place."""
        peel, random = (
            HeadPeel.of(layer, size, rank, nonnegative=False),
            generator(self.seed, "next_tokens", seen.round, seen.client),
        )
        with progress.bar("next tokens", rank) as advance:
            while len(peel) < rank and time.perf_counter() < started + self.seconds:
                if not peel.search(1, 0.5, random, sure=True):
                    break
                advance(len(peel))
        peel.settle()
        found = torch.zeros(len(layer.weight), dtype=torch.int64).index_add(0, peel.labels, peel.copies)
        return found + peel.at_least()


def output_layer(model: nn.Module, task: Task) -> str:
    """Return the name of the linear layer that tells the next token."""
    named: list[str] = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == task.num_classes
    ]
    if not named or model.get_submodule(named[-1]).bias is None:
        raise FedsimError(
            f"next_tokens: expected an output layer of {task.num_classes} tokens with a bias, got "
            f"{'one without a bias' if named else 'none'}. Remedy: model=text_decoder; attack=dager."
        )
    return named[-1]


def _layer(model: nn.Module, name: str, seen: Observation) -> LinearLayer:
    """Return the output layer with its mean gradient in float64."""
    factor = claims.gradient_factor(seen)
    weight, bias = (seen.received[f"{name}.{part}"].double() * factor for part in ("weight", "bias"))
    if not bool(bias.any()):
        raise FedsimError("next_tokens: the output layer's gradient is zero. Remedy: distrust this client.")
    return LinearLayer(
        name=name,
        weight=seen.sent[f"{name}.weight"].double(),
        bias=seen.sent[f"{name}.bias"].double(),
        weight_gradient=weight,
        bias_gradient=bias,
        task_shape=None,
    )


def _counted(gradient: Tensor, rank: int, noise: float) -> tuple[int, Tensor]:
    """Return how many places have a next token, as far as that shows, and the fewest of each token.

    At least as many as the rank: equal beginnings of texts are one. Bounds of too few places hold, too, and
    where nothing is expected they are the counts already: then they add up to the places.
    """
    fewest = at_least(rank * gradient, MOST, rank * noise)
    size = max(rank, int(fewest.sum()))
    counts = at_least(size * gradient, MOST, size * noise)
    return (size, counts) if int(counts.sum()) == size else (rank, fewest)
