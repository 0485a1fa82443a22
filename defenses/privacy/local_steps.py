"""Several local steps between what is sent and what comes back: federated averaging.

Paper: McMahan et al., Communication-Efficient Learning of Deep Networks (AISTATS 2017).
"""

import dataclasses

from fedsim.core.errors import FedsimError
from fedsim.core.federation import Federation
from fedsim.core.interfaces import Defense


class LocalSteps(Defense):
    """Clients take several steps, each on a batch of its own, and send the update instead of a gradient."""

    def __init__(self, *, steps: int = 5, learning_rate: float = 0.05) -> None:
        """Set the number of local steps and their learning rate."""
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise FedsimError(f"defense.local_steps.steps: expected a whole number above 0, got {steps!r}")
        if not isinstance(learning_rate, int | float) or not learning_rate > 0:
            raise FedsimError(
                f"defense.local_steps.learning_rate: expected a positive number, got {learning_rate!r}"
            )
        self.steps = steps
        self.learning_rate = learning_rate

    def rules(self, federation: Federation) -> Federation:
        """Play by fedavg."""
        return dataclasses.replace(
            federation, mode="fedavg", local_steps=self.steps, local_lr=self.learning_rate
        )
