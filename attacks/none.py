"""No attack: rounds are played and observed, nothing is reconstructed."""

from collections.abc import Sequence

from torch import nn

from fedsim.core.interfaces import Attack
from fedsim.core.types import Observation, Reconstruction, Task


class NoAttack(Attack):
    """No attack: train and save the observations only (attack them later with `fedsim replay`)."""

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Recover nothing."""
        return Reconstruction()
