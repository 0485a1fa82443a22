"""A small Flower app that tests tap: a model with batch norm, three clients, two rounds."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import (
    FedAvg,
    Result,
    Strategy,
)
from torch import Tensor, nn
from torch.nn import functional

from fedsim.flower.engines.inline import InlineGrid, play_inline
from fedsim.flower.wiretap import Task, Wiretap
from fedsim.lab.experiment import replay
from fedsim.lab.replay import prepare_replay
from fedsim.storage.runfolder import RunFolder

TASK = Task(input_shape=(1, 4, 4), num_classes=3, mean=(0.4,), std=(0.3,))
CLIENTS, ROUNDS, RATE = 3, 2, 0.05


class Small(nn.Module):
    """With batch norm: its state holds running statistics and a whole number."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first = nn.Linear(16, width)
        self.norm = nn.BatchNorm1d(width)
        nn.init.constant_(self.norm.weight, 0.3)  # features that are alike, as label restoration likes them
        nn.init.constant_(self.norm.bias, 2.0)
        self.last = nn.Linear(width, 3)

    @classmethod
    def of_twelve(cls) -> "Small":
        return cls(12)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(functional.relu(self.norm(self.first(images.flatten(1)))))


class Masked(Small):
    """With buffers that no arithmetic likes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
        self.register_buffer("flags", torch.tensor([True, False]))


class Other(nn.Module):
    """Another model for the same images."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(16, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.other(images.flatten(1))


def make_small() -> Small:
    return Small()


def no_model() -> str:
    return "not a module"


def batch(client: int, round: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(10 * round + client)
    labels = torch.randint(3, (6 + client,), generator=generator)
    return torch.rand(len(labels), 1, 4, 4, generator=generator), labels


def counts(client: int, round: int) -> list[int]:
    return batch(client, round)[1].bincount(minlength=3).tolist()


def metrics(client: int) -> MetricRecord:
    return MetricRecord({"num-examples": 6 + client, "train_loss": 1.5})


def trained_state(state: dict[str, Tensor], client: int, round: int) -> dict[str, Tensor]:
    """Take a step of SGD, as a client would."""
    model = Small()
    model.load_state_dict(state)
    pixels, labels = batch(client, round)
    functional.cross_entropy(model((pixels - 0.4) / 0.3), labels).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= RATE * parameter.grad
    return model.state_dict()


def client_app(behave: Callable[[Message, int, int], Message | None] | None = None) -> ClientApp:
    """Clients that take a step of SGD; `behave` may answer in their place."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client, round = (
            int(context.node_config["partition-id"]),
            int(message.content["config"]["server-round"]),
        )
        if behave is not None and (answer := behave(message, client, round)) is not None:
            return answer
        trained = trained_state(message.content["arrays"].to_torch_state_dict(), client, round)
        content = RecordDict({"arrays": ArrayRecord(trained), "m": metrics(client)})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        size = float(sum(np.nan_to_num(array.numpy()).sum() for array in message.content["arrays"].values()))
        return Message(RecordDict({"m": MetricRecord({"size": size, "num-examples": 1})}), reply_to=message)

    return app


class ListGrid(InlineGrid):
    """Answers with a list, as Flower's own grids do."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return list(super().send_and_receive(messages, timeout=timeout))


def federate(strategy: Strategy, clients: ClientApp, seed: int = 0, lists: bool = True) -> Result:
    """Play a strategy in this process; all global random numbers begin at the seed."""
    results = []
    server = ServerApp()

    @server.main()
    def main(grid: InlineGrid, context: Context) -> None:
        grid = (ListGrid if lists else InlineGrid)(clients, CLIENTS)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (what Flower's noise draws from)
        torch.manual_seed(seed)
        config = ConfigRecord({"lr": RATE, "local-steps": 1})
        arrays = ArrayRecord(Small().state_dict())
        results.append(strategy.start(grid, arrays, num_rounds=ROUNDS, timeout=5, train_config=config))

    play_inline(server, clients, CLIENTS)
    return results[0]


def tap_with_truth(folder: Path, **named) -> Path:
    """Play FedAvg under a wiretap, and keep the clients' batches."""
    tap = Wiretap(FedAvg(), folder, **named)
    federate(tap, client_app())
    for round in range(1, ROUNDS + 1):
        for client in range(CLIENTS):
            pixels, labels = batch(client, round)
            tap.keep_truth(round=round, client=1000 + client, images=pixels, labels=labels)
    return folder


def replayed(folder: Path, into: Path, *overrides: str) -> RunFolder:
    experiment, source, _ = prepare_replay(RunFolder(folder), overrides, allowed=["tapped_app", "quickstart"])
    return replay(experiment, source, into)
