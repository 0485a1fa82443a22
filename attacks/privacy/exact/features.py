"""Features and labels of every example, exactly, by whichever attack on linear layers finds the most of them.

What leaks: what enters a linear layer behind the convolutions, example by example, with its label.
Paper: none; chooses between this laboratory's exact attacks.
Assumes: softmax cross-entropy, linear layers with biases behind the convolutions, one gradient step.
Fails: as those that it tries: with more examples than about half the classes, or a third of the units.

The rule: first_layer_peeling and peeling, where two linear layers or more lead up to the logits: their
features are the earlier ones and tell most; then head_peeling. The first that finds every example is taken,
otherwise the one that finds most; features without labels (peeling, where it cannot tell) are not taken.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence

from torch import nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.exact.first_layer_peeling import FirstLayerPeeling
from fedsim.attacks.privacy.exact.head_peeling import HeadPeeling
from fedsim.attacks.privacy.exact.peeling import Peeling
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.models.last_linear import last_linear_name

log = logging.getLogger(__name__)


class Features(Attack):
    """Exact features of every example by the attack that finds most of them."""

    def __init__(self, *, seconds: float | None = None, seed: int = 0) -> None:
        """Set the time budget of each attack that is tried."""
        two_layers = (FirstLayerPeeling(seconds=seconds, seed=seed), Peeling(seconds=seconds, seed=seed))
        self.tried: tuple[Attack, ...] = (*two_layers, HeadPeeling(seconds=seconds, seed=seed))

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that does not end in a linear layer with a bias."""
        last_linear_name(model, task.input_shape)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Recover features by one attack after another, until every example is found."""
        started, size = time.perf_counter(), claims.checked(observations[-1]).num_examples
        best, reasons = None, list[str]()
        for attack in self.tried:
            try:
                attack.check(model, task)
                guess = attack.run(model, task, observations)
            except FedsimError as error:
                reasons.append(f"{type(attack).__name__}: {error}")
                continue
            log.info("%s found %d of %s examples", type(attack).__name__, number_found(guess), size or "?")
            if number_found(guess) > (0 if best is None else number_found(best)):
                best = guess
            if best is not None and number_found(best) == size:
                break
        if best is None:
            raise FedsimError("no exact attack found features: " + " ".join(reasons or ["none of them"]))
        return dataclasses.replace(best, seconds=time.perf_counter() - started)


def number_found(guess: Reconstruction) -> int:
    """Return of how many examples features, or images of fully connected models, are known with labels."""
    rows = guess.embeddings if guess.embedding_layer is not None else guess.images
    if rows is None or guess.labels is None:
        return 0
    return len(rows) if len(guess.labels) == len(rows) else 0
