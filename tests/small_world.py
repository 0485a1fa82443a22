"""A small world for forgeries: 400 images of 49 grey levels, steps in float64."""

import copy

import torch
from torch import Tensor, nn

from fedsim.core.challenges import Challenge, challenge_on
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, batch_gradient
from fedsim.data.synthetic import synthetic
from fedsim.models.mlp import mlp

DATA = synthetic(shape=(1, 7, 7), num_classes=4, train_size=400, test_size=40)


def examples(indices: Tensor) -> Batch:
    levels = DATA.train.pixels[indices].double()
    return Batch(images=levels / 255, labels=DATA.train.labels[indices])


def challenge(model: nn.Module, size: int, *, unwanted: int | None = None, seed: int = 0) -> Challenge:
    """A step in float64 on grey levels."""
    order = torch.randperm(400, generator=generator(seed, "challenge"))
    return challenge_on(
        order[:size],
        model=model.double(),
        unwanted=torch.arange(size if unwanted is None else unwanted),
        task=DATA.task,
        owned=order,
        examples=examples,
        chance=generator(seed, "forge"),
    )


def gap(asked: Challenge, claimed: Batch, dtype: torch.dtype = torch.float64) -> float:
    """Length of the difference of gradients."""
    model = copy.deepcopy(asked.model).to(dtype)

    def gradient(batch: Batch) -> Tensor:
        labels = batch.labels if batch.labels.dtype == torch.int64 else batch.labels.to(dtype)
        return torch.cat(
            [t.flatten() for t in batch_gradient(model, batch.images.to(dtype), labels)[0].values()]
        )

    return float((gradient(asked.batch) - gradient(claimed)).norm())


def network(depth: int, *, width: int = 5, bias: bool = True) -> nn.Module:
    torch.manual_seed(depth)
    model = mlp(DATA.task, depth=depth, width=width)
    if not bias:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.bias = None
    return model
