"""Several local steps between what is sent and what comes back: federated averaging.

Paper: McMahan et al., Communication-Efficient Learning of Deep Networks (AISTATS 2017).
"""

import dataclasses

from fedsim.core.federation import Federation
from fedsim.core.interfaces import Defense
from fedsim.core.settings import number, whole


class LocalSteps(Defense):
    """Clients take several steps, each on a batch of its own, and send the update instead of a gradient."""

    repeatable = True

    def __init__(self, *, steps: int = 5, learning_rate: float = 0.05) -> None:
        """Set the number of local steps and their learning rate."""
        self.steps = whole("defense.local_steps.steps", steps)
        self.learning_rate = number("defense.local_steps.learning_rate", learning_rate, above=0)

    def rules(self, federation: Federation) -> Federation:
        """Play by fedavg."""
        return dataclasses.replace(
            federation, mode="fedavg", local_steps=self.steps, local_lr=self.learning_rate
        )
