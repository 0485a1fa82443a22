"""The app in this process, without `flwr run`; private batches are kept too, so that replays are scored."""

import tomllib
from pathlib import Path

from finetuning import client_app, server_app, task

from fedsim import keep_truth
from fedsim.flower.engines.grid import FIRST_NODE
from fedsim.flower.engines.inline import play_inline

CLIENTS = 2


def main() -> None:
    """Train, then save the batch behind every reply."""
    project = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text())
    settings = project["tool"]["flwr"]["app"]["config"]
    play_inline(server_app.app, client_app.app, CLIENTS, settings)
    for server_round in range(1, settings["num-server-rounds"] + 1):
        for client in range(CLIENTS):
            tokens, nexts = task.load_lines(client, CLIENTS, server_round, settings["batch-size"])
            keep_truth("tapped", round=server_round, client=FIRST_NODE + client, images=tokens, labels=nexts)


if __name__ == "__main__":
    main()
