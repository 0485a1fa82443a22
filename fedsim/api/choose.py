"""Attacks, defenses, metrics, models and data by name: a yaml's, `module.Class`, or a class itself."""

from typing import Any

from torch import nn

from fedsim.config.parts import part
from fedsim.core.interfaces import Attack, Defense, Metric
from fedsim.core.types import Task
from fedsim.data.images import Dataset


def attack(name: str | type[Attack], **settings: Any) -> Attack:
    """Return an attack: `fedsim.attack("span_matching", seconds=60)`."""
    made: Attack = part("attack", name, **settings)
    return made


def defense(name: str | type[Defense], **settings: Any) -> Defense:
    """Return a defense: `fedsim.defense("noise", sigma=0.01)`."""
    made: Defense = part("defense", name, **settings)
    return made


def metric(name: str | type[Metric], **settings: Any) -> Metric:
    """Return a metric: `fedsim.metric("psnr", best=6)`."""
    made: Metric = part("metric", name, **settings)
    return made


def model(name: str | type[nn.Module], *, task: Task, seed: int = 0, **settings: Any) -> nn.Module:
    """Return a model for a task, as an experiment of this seed begins with it."""
    made: nn.Module = part("model", name, task, seed, **settings)
    return made


def dataset(name: str, **settings: Any) -> Dataset:
    """Return a data set: its task, and its train and test images with labels."""
    made: Dataset = part("data", name, **settings)
    return made
