"""The Flower server app: plays the rounds that are left, and tests the global model after each."""

import time

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedsim.core import progress
from fedsim.flower.evaluation import evaluate_round
from fedsim.flower.nodes import clients_of_nodes
from fedsim.flower.records import decode, encode
from fedsim.flower.setups import ServerSetup
from fedsim.flower.strategy import ObservingStrategy


def server_app(setup: ServerSetup) -> ServerApp:
    """Build the ServerApp that plays all rounds."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.set_num_threads(setup.threads)
        started = time.perf_counter()
        initial = {name: p.detach().cpu().clone() for name, p in setup.model.named_parameters()}
        strategy = ObservingStrategy(setup=setup, nodes=clients_of_nodes(grid, setup.federation.clients))
        with progress.bar("rounds", setup.federation.rounds) as advance:

            def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
                if server_round == 0 and setup.done:
                    return None  # it was tested when that round ended
                round = server_round + setup.done
                advance(round)
                weights = decode(arrays)
                result = evaluate_round(setup, round, weights, time.perf_counter() - started)
                setup.keep_weights(weights, round)
                return result

            rules, left = setup.federation, setup.federation.rounds - setup.done
            strategy.start(grid, encode(initial), left, timeout=rules.timeout, evaluate_fn=evaluate)

    return app
