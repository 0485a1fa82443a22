"""The model, the data and the training step of the app."""

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.data import mnist_small

MEAN, STD = 0.1307, 0.3081
digits = functools.cache(mnist_small.mnist_small)  # 6,000 digits that come with fedsim


class Net(nn.Module):
    """A small CNN."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, stride=2, padding=2)
        self.norm = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 5, stride=2, padding=2)
        self.fc = nn.Linear(16 * 7 * 7, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        hidden = functional.relu(self.norm(self.conv1(images)))
        hidden = functional.relu(self.conv2(hidden))
        return self.fc(hidden.flatten(1))


def load_pixels(partition: int, partitions: int, server_round: int, size: int) -> tuple[Tensor, Tensor]:
    """Return a client's batch of a round: pixels in [0, 1], and labels."""
    data = digits()
    own = torch.arange(partition, len(data.train.labels), partitions)
    order = torch.randperm(len(own), generator=torch.Generator().manual_seed(1000 * server_round + partition))
    chosen = own[order[:size]]
    return data.train.batch(chosen), data.train.labels[chosen]


def normalise(pixels: Tensor) -> Tensor:
    """Return what enters the model."""
    return (pixels - MEAN) / STD


def train(net: Net, images: Tensor, labels: Tensor, lr: float) -> float:
    """Take one step of SGD; return the loss."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    loss = functional.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def test(net: Net, partition: int, partitions: int) -> tuple[float, float, int]:
    """Return loss, accuracy and number of a client's test images."""
    data = digits()
    chosen = torch.arange(partition, len(data.test.labels), partitions)
    labels = data.test.labels[chosen]
    net.eval()
    with torch.no_grad():
        logits = net(normalise(data.test.batch(chosen)))
    accuracy = float((logits.argmax(1) == labels).float().mean())
    return float(functional.cross_entropy(logits, labels)), accuracy, len(labels)
