"""The server's part of secure aggregation: it passes keys and shares on, and learns the sum alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsim.core import masking
from fedsim.core.errors import FedsimError
from fedsim.core.types import Weights
from fedsim.flower.masked_client import STAGE
from fedsim.flower.nodes import addressed_to
from fedsim.flower.records import arrays_of, decode

Values = Mapping[str, bytes]


@dataclass(eq=False)
class MaskedRound:
    """One round of the protocol. Clients that do not answer a stage are out of it."""

    grid: Grid
    node_of: Mapping[int, int]
    round: int
    seed: int
    degree: int | None  # neighbours of each client; None: as many as SecAgg+ asks for
    timeout: float
    near: dict[int, list[int]] = field(default_factory=dict)
    keys: dict[int, Values] = field(default_factory=dict)  # of clients: pair, envelope
    envelopes: dict[int, Values] = field(default_factory=dict)  # by sender, then by receiver
    needed: dict[int, int] = field(default_factory=dict)  # shares that give a client's secret back
    heard: int = 0  # bytes of keys and shares that clients have sent, beside their replies

    def begin(self) -> list[int]:
        """Exchange keys and shares; return the clients that are in."""
        told = self._asked("keys", {client: {} for client in self.node_of})
        self.keys = {c: keys for c, keys in told.items() if set(keys) == {"pair", "envelope"}}
        members = sorted(self.keys)
        if len(members) < 3:
            raise FedsimError(
                f"secure_aggregation: expected at least 3 clients with keys, got {len(members)}: with "
                "two, each learns the other's reply from the sum. Remedy: more federation.clients."
            )
        self.near = masking.neighbours(members, self.degree, self.seed, self.round)
        self.needed = {client: masking.threshold(len(near)) for client, near in self.near.items()}
        wanted = {client: {"envelope keys": self._keys_for(client, "envelope")} for client in members}
        self.envelopes = self._asked("shares", wanted)
        self.near = {
            client: [other for other in self.near[client] if other in self.envelopes]
            for client in sorted(self.envelopes)
        }
        return list(self.near)

    def question(self, client: int) -> dict[str, ConfigRecord]:
        """Return what a client needs to mask its reply."""
        told = ConfigRecord({"round": self.round, "stage": "train", "terms": len(self.near)})
        return {STAGE: told, "mask keys": ConfigRecord({**self._keys_for(client, "pair")})}

    def numbers(self, reply: Message, sent: Weights) -> dict[str, Tensor]:
        """Read a masked reply, of which nothing but its form can be checked."""
        came = decode(arrays_of(reply))
        forms = {name: tuple(tensor.shape) for name, tensor in came.items()}
        if forms != {name: tuple(tensor.shape) for name, tensor in sent.items()}:
            raise FedsimError("expected masked tensors of the form that was sent, got another")
        if kinds := {str(tensor.dtype) for tensor in came.values()} - {"torch.int64"}:
            raise FedsimError(f"expected masked whole numbers, got {', '.join(sorted(kinds))}")
        return came

    def unmasked(self, total: Weights, answered: Sequence[int]) -> dict[str, Tensor]:
        """Take all masks off a sum of the replies of those that answered."""
        there = set(answered)
        wanted = {
            client: {
                "envelope keys": self._keys_for(client, "envelope"),
                "envelopes": {
                    str(other): self.envelopes[other][str(client)]
                    for other in self.near[client]
                    if str(client) in self.envelopes[other]
                },
            }
            for client in answered
        }
        given = self._asked("unmask", wanted, answered=sorted(there))
        for client in self.near:
            held = {h: given[h][str(client)] for h in self.near[client] if str(client) in given.get(h, {})}
            gone = client not in there
            if gone and not any(other in there for other in self.near[client]):
                continue  # no mask of it is in the sum
            found = masking.joined(held, self.needed[client])
            if not gone:
                total = masking.added(total, masking.stream(found, total), -1)
                continue
            if masking.public_key(found) != self.keys[client]["pair"]:
                raise FedsimError(f"the shares of client {client}'s key give another key")
            for other in self.near[client]:
                if other in there:  # it added what this client would have subtracted
                    key = masking.agreed(found, self.keys[other]["pair"], f"mask {self.round}")
                    total = masking.added(total, masking.stream(key, total), -1 if other < client else 1)
        return masking.floating(total)

    def _keys_for(self, client: int, name: str) -> dict[str, bytes]:
        return {str(other): self.keys[other][name] for other in self.near[client]}

    def _asked(
        self, stage: str, wanted: Mapping[int, Mapping[str, Values]], answered: Sequence[int] = ()
    ) -> dict[int, Values]:
        """Ask clients at a stage; return what those say that answer."""
        clients, heard = {self.node_of[client]: client for client in wanted}, dict[int, Values]()
        questions = list[Message]()
        for client, records in wanted.items():
            told = ConfigRecord({"round": self.round, "stage": stage, "answered": list(answered)})
            content = RecordDict({STAGE: told, "you": addressed_to(client)})
            for name, values in records.items():
                content[name] = ConfigRecord({**values})
            node = self.node_of[client]
            questions.append(Message(content, node, MessageType.QUERY, group_id=str(self.round)))
        for reply in self.grid.send_and_receive(questions, timeout=self.timeout):
            sender = clients.get(reply.metadata.src_node_id)
            if sender is None or reply.has_error() or STAGE not in reply.content:
                continue
            record = reply.content[STAGE]
            if isinstance(record, ConfigRecord):
                heard[sender] = {name: v for name, v in record.items() if isinstance(v, bytes)}
                self.heard += sum(map(len, heard[sender].values()))
        return dict(sorted(heard.items()))
