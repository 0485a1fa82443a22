"""Flower's simulation engine: clients as Ray actors, on this machine or on an existing cluster."""

from typing import Any

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedsim import environment
from fedsim.errors import FedsimError


class Ray:
    """Clients in parallel on Ray; `address` joins a running cluster that shares the run folder's disk."""

    def __init__(
        self, *, cpus_per_client: float = 1.0, gpus_per_client: float = 0.0, address: str | None = None
    ) -> None:
        if cpus_per_client <= 0 or gpus_per_client < 0:
            raise FedsimError(
                "engine: expected cpus_per_client > 0 and gpus_per_client >= 0, "
                f"got {cpus_per_client} and {gpus_per_client}"
            )
        self.resources = {"num_cpus": cpus_per_client, "num_gpus": gpus_per_client}
        self.address = address

    def play(self, server_app: ServerApp, client_app: ClientApp, clients: int) -> None:
        """Run the server app against the client app until it ends, then stop Ray."""
        from flwr.simulation import run_simulation

        environment.silence_flower()
        start: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address:
            start["address"] = self.address
        else:
            start["_temp_dir"] = str(environment.private_folder() / "ray")
        run_simulation(
            server_app=server_app,
            client_app=client_app,
            num_supernodes=clients,
            backend_config={"init_args": start, "client_resources": dict(self.resources)},
        )
