"""What clients keep from round to round, on disk, so that a resumed run finds it."""

from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context

from fedsim.flower.records import decode, encode
from fedsim.storage.folder import Storage

KEPT = "kept on disk"  # in a client's state: it is the disk's, or newer
PROOF = "proof"


@dataclass(frozen=True)
class ClientStates:
    """Files of clients' states after rounds. Of each client the last two: a round may not come to its end."""

    storage: Storage  # of the run

    def restore(self, client: int, context: Context) -> None:
        """Give a client that was just started the state that it had."""
        if KEPT in context.state:
            return
        context.state[KEPT] = ConfigRecord()
        for name in self._files(client)[-1:]:
            tensors, _ = self.storage.read_tensors(name) or ({}, {})
            if PROOF in tensors:
                context.state[PROOF] = ConfigRecord({"sealed": tensors.pop(PROOF).numpy().tobytes()})
            for record in {name.partition("/")[0] for name in tensors}:
                own = {n.partition("/")[2]: t for n, t in tensors.items() if n.partition("/")[0] == record}
                context.state[record] = encode(own)

    def keep(self, client: int, round: int, context: Context) -> None:
        """Save a client's state after a round."""
        tensors: dict[str, torch.Tensor] = {}
        for name, record in context.state.items():
            if isinstance(record, ArrayRecord) and name.startswith(("rest", "last sent")):
                tensors |= {f"{name}/{key}": tensor for key, tensor in decode(record).items()}
        proof = context.state.get(PROOF)
        if isinstance(proof, ConfigRecord) and isinstance(sealed := proof.get("sealed"), bytes):
            tensors[PROOF] = torch.frombuffer(bytearray(sealed), dtype=torch.uint8)
        earlier = self._files(client)[:-1]
        self.storage.write_tensors(f"clients/{client}/round_{round:06d}.safetensors", tensors)
        self.storage.delete(earlier)

    def _files(self, client: int) -> list[str]:
        return sorted(self.storage.names(f"clients/{client}/round_"))
