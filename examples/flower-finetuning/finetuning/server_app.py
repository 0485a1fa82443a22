"""The server: plain FedAvg, and the lines that tap it."""

import random

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsim import Wiretap  # wiretap: 1 of 3
from finetuning.task import lines, net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds."""
    torch.manual_seed(0)
    random.seed(0)  # FedAvg asks its clients in an order of its own, and sums round differently in another
    strategy = FedAvg(fraction_evaluate=0.0)
    task = lines().task  # wiretap: 2 of 3: which tokens there are
    strategy = Wiretap(strategy, "tapped", model=net, task=task)  # wiretap: 3 of 3
    strategy.start(
        grid,
        ArrayRecord(net().state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
        train_config=ConfigRecord({"lr": context.run_config["lr"], "local-steps": 1}),
    )
