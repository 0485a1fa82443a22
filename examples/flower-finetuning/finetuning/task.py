"""The language model, the lines that clients hold, and the training step of the app."""

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.data.shakespeare_small import shakespeare_small
from fedsim.models.text_decoder import text_decoder

lines = functools.cache(functools.partial(shakespeare_small, goal="next"))  # 4,500 lines come with fedsim


def net() -> nn.Module:
    """Return a small decoder transformer that tells the next token."""
    return text_decoder(lines().task)


def load_lines(partition: int, partitions: int, server_round: int, size: int) -> tuple[Tensor, Tensor]:
    """Return a client's batch of a round: tokens, and the next ones."""
    data = lines()
    own = torch.arange(partition, len(data.train.labels), partitions)
    order = torch.randperm(len(own), generator=torch.Generator().manual_seed(1000 * server_round + partition))
    chosen = own[order[:size]]
    return data.train.batch(chosen), data.train.labels[chosen]


def train(model: nn.Module, tokens: Tensor, nexts: Tensor, lr: float) -> float:
    """Take one step of SGD; return the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loss = functional.cross_entropy(model(tokens), nexts)
    loss.backward()
    optimizer.step()
    return float(loss.detach())
