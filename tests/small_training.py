"""A training outside of rounds that takes no time, and the same done by hand."""

import torch
from torch import nn

from fedsim.core.training import sgd_step, weights_of
from fedsim.core.types import Weights
from fedsim.data.synthetic import synthetic
from fedsim.integrity.training import CentralTraining, batch_at, central_indices
from fedsim.models.layers import Normalize

DATA = synthetic(shape=(1, 4, 4), num_classes=3, train_size=24, test_size=6)


def fresh(number: int) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(Normalize(DATA.task), nn.Flatten(), nn.Linear(16, 3)).eval()


TRAINING = CentralTraining(
    fresh=fresh,
    train=DATA.train,
    task=DATA.task,
    steps=7,
    batch_size=8,
    learning_rate=0.3,
    precision="float32",
    seed=5,
    keys=None,
    threads=1,
    study=(),
    intervals=(2,),
    batch_sizes=(4, 8),
)


def by_hand(training: CentralTraining = TRAINING, number: int = 0, steps: int = 7) -> list[Weights]:
    """Return the weights before and after every step."""
    model = training.fresh(number)
    found: list[Weights] = [weights_of(model)]
    for step in range(steps):
        sgd_step(model, batch_at(training, central_indices(training, step, number)), 0.3)
        found.append(weights_of(model))
    return found
