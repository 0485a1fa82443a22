"""What attacks within gradient matching find: one that fails only costs the search what it would know."""

import logging
from collections.abc import Sequence

from torch import nn

from fedsim.core.errors import in_words
from fedsim.core.interfaces import Attack
from fedsim.core.types import Observation, Reconstruction, Task

log = logging.getLogger(__name__)


def found_by(
    attack: Attack | None, setting: str, model: nn.Module, task: Task, observations: Sequence[Observation]
) -> Reconstruction | None:
    """Return what an attack recovers; None: there is none, or it fails."""
    if attack is None:
        return None
    try:
        return attack.run(model, task, observations)
    except Exception as error:
        log.warning("attack.%s: %s; the search goes on without", setting, in_words(error))
        return None
