"""Your own training, with a proof: momentum, a schedule, batch norm, dropout and augmentation.

    fedsim keys keys                                     # once; the verifier keeps verifier.secret
    python proved_training.py                            # trains, and leaves mine/training.proof
    fedsim verify mine/model.safetensors mine/training.proof --loop proved_training.train proof.keys=keys

All that is fedsim's are the recorder, which hands out the batches, and the last line.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import fedsim


class Net(nn.Module):
    """A small convolutional network, with buffers that training changes and with chance in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2, bias=False),  # batch norm takes a bias away again
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 5, stride=2, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(256, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return a score for every digit."""
        return self.layers(images)


def shifted(images: Tensor) -> Tensor:
    """Move images by up to two pixels: augmentation, by torch's own chance."""
    right, down = torch.randint(-2, 3, (2,)).tolist()
    return torch.roll(images, (down, right), (2, 3))


def train(record: fedsim.Recorder, *, optimizer: str = "sgd", steps: int = 30, every: int = 10) -> None:
    """Train as you would, with batches from the recorder."""
    data = fedsim.dataset("mnist_small").train
    images = data.batch(torch.arange(len(data.labels)))
    loader = DataLoader(TensorDataset(images, data.labels), batch_size=32)
    model = Net().train()
    if optimizer == "sgd":
        optimize = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    else:
        optimize = torch.optim.Adam(model.parameters(), lr=0.003)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimize, steps)
    for images, labels in record(loader, model, optimize, schedule, steps=steps, every=every):
        optimize.zero_grad()
        loss = cross_entropy(model(shifted(images)), labels)
        loss.backward()
        optimize.step()
        schedule.step()
        if record.step % 20 == 19:
            print(f"step {record.step + 1}: loss {loss.item():.3f}")


if __name__ == "__main__":
    print(fedsim.prove(train, into="mine", keys="keys"))
