"""One attack on one observation: live, under a Wiretap, or afterwards, in a run or a replay."""

import logging

import torch
from torch import nn

from fedsim.core.errors import FedsimError, in_words
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import undisturbed
from fedsim.core.training import load_weights
from fedsim.core.types import Fault, Observation, Reconstruction, Task
from fedsim.models.foreign import fitted

log = logging.getLogger(__name__)


class Refusal(Fault):
    """An attack's own words on why it cannot work on an observation; a plain Fault is a crash."""


def attack_one(
    attack: Attack, model: nn.Module, task: Task, observation: Observation
) -> Reconstruction | Fault:
    """Attack an observation; a failure is a Fault. model: the attack's own, it gets the weights sent."""
    try:
        with undisturbed(), torch.enable_grad():
            seen = fitted(model, observation)
            load_weights(model, seen.sent)
            return attack.run(model, task, [seen])
    except Exception as error:
        log.debug("attack failed", exc_info=True)
        kind = Refusal if isinstance(error, FedsimError) else Fault
        reason = f"the attack failed: {in_words(error)}"
        return kind(round=observation.round, client=observation.client, reason=reason)
