"""The server: plain FedAvg, and the lines that tap it."""

import random

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsim import Task, Wiretap  # wiretap: 1 of 3
from quickstart.task import MEAN, STD, Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds."""
    torch.manual_seed(0)
    random.seed(0)  # FedAvg asks its clients in an order of its own, and sums round differently in another
    strategy = FedAvg()
    task = Task(input_shape=(1, 28, 28), num_classes=10, mean=(MEAN,), std=(STD,))  # wiretap: 2 of 3
    strategy = Wiretap(strategy, "tapped", model=Net, task=task)  # wiretap: 3 of 3
    strategy.start(
        grid,
        ArrayRecord(Net().state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
        train_config=ConfigRecord({"lr": context.run_config["lr"], "local-steps": 1}),
    )
