"""Images of every client out of a secure sum: each client gets bins of its own, and the sum keeps them
apart.

What leaks: the images of all clients' batches and their labels, exactly, and whose they are.
Paper: Zhao et al., LOKI: Large-scale Data Reconstruction Attack against Federated Learning through Model
    Manipulation (S&P 2024). There each client gets convolutions of its own and a layer is put behind
    them; here the model keeps its form, and clients differ by biases alone.
Assumes: the server chose the weights and may send each client its own; a linear layer with ReLUs behind
    it, of about three units for each example of a round; the gradient of one step.
Fails: where all clients compare what they were sent; with fewer units.

Client k's units are a block of the layer; in what others are sent, their biases keep them silent.
"""

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.crafted.crafted import Crafted
from fedsim.attacks.privacy.crafted.decode import Peel
from fedsim.attacks.privacy.crafted.imprint import binned
from fedsim.attacks.privacy.crafted.readout import Place, Plan, Readout, find_place
from fedsim.core import settings
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.types import Observation, PublicImages, Task, Weights

SILENT = 100.0  # times the length of a typical input: a bias that nothing reaches
DIRECTIONS = 3  # of a block: each image is in three bins, and peeling finds nearly all


class Loki(Crafted):
    """A block of bins for each client, silent for all others."""

    def __init__(
        self,
        *,
        public: PublicImages | None = None,
        clients: int = 4,
        every: int = 1,
        tolerance: float = 1e-3,
        seed: int = 0,
    ) -> None:
        """Set how many clients there are, each with a block of the layer's units."""
        super().__init__(public=public, every=every, tolerance=tolerance, seed=seed)
        self.clients = settings.whole("attack.clients", clients)

    def plan(self, inputs: Tensor, units: int, random: torch.Generator) -> Plan:
        """Return a block of bins for every client."""
        each = units // self.clients
        if each < 2 * DIRECTIONS:
            raise FedsimError(
                f"loki: {units} units leave {each} for each of {self.clients} clients, expected at least "
                f"{2 * DIRECTIONS}. Remedy: a larger model.width."
            )
        blocks = [binned(inputs, each, DIRECTIONS, 1, random) for _ in range(self.clients)]
        spare = units - each * self.clients
        rows = torch.cat([block.rows for block in blocks] + [blocks[0].rows[:1]] * spare)
        silent = rows.new_full((spare,), SILENT * float(inputs.norm(dim=1).mean()))
        thresholds = torch.cat([block.thresholds for block in blocks] + [silent])
        return Plan(rows=rows, thresholds=thresholds, levels=torch.zeros(units, dtype=torch.int64))

    def tailor(self, model: nn.Module, task: Task, round: int, client: int, broadcast: Weights) -> Weights:
        """Silence the units of all other clients."""
        place = find_place(model, task)
        bias = broadcast[f"{place.layer}.bias"]
        size = float(broadcast[f"{place.layer}.weight"].shape[1]) ** 0.5
        own = torch.full_like(bias, -SILENT * size)
        units = self._units(client, len(bias))
        own[units] = bias[units]
        return {**broadcast, f"{place.layer}.bias": own}

    def peels(
        self,
        model: nn.Module,
        task: Task,
        place: Place,
        readout: Readout,
        observation: Observation,
        size: int,
    ) -> list[Peel]:
        """Return what was found in each client's block."""
        clients = observation.clients or (observation.client,)
        if max(clients) >= self.clients:
            raise FedsimError(
                f"attack.clients: expected more than {max(clients)}, the number of a client, got "
                f"{self.clients}. Remedy: attack.clients=${{federation.clients}}."
            )
        most = -(-size // len(clients))
        found = list[Peel]()
        for client in clients:
            units = self._units(client, len(readout.weight))
            random = generator(self.seed, "left over", observation.round, client)
            part = readout.part(units, readout.bias[units])
            if bool(part.gradient.any()):
                found.append(self.peeled(part, size, most, random))
        return found

    def _units(self, client: int, units: int) -> Tensor:
        each = units // self.clients
        return torch.arange(client * each, (client + 1) * each)
