"""What a verifier goes by: how much it looks at, and what it knows without the proof."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import nn

from fedsim.core.errors import FedsimError
from fedsim.core.training import Batch, Commitment, weights_of
from fedsim.core.types import Kind, Task, Weights
from fedsim.defenses.integrity.proof.calibration import Calibration
from fedsim.defenses.integrity.proof.leaning import Leaning

Reveal = Callable[[Sequence[int], Sequence[tuple[int, ...]]], Sequence[Batch]]


@dataclass(frozen=True, kw_only=True)
class Thoroughness:
    """How much a verifier looks at."""

    top: int = 1  # Q: of each epoch, the largest updates
    random: int | None = None  # R: of each epoch, others, drawn after sealing; None: as detection asks
    detection: float = 0.95  # the chance at which one false interval, wherever it is, must be found
    delta: float = 1e-6  # how far a recomputed checkpoint may be from the claimed one
    widen: float = 0.01  # of an interval's length: where honest machines differ by more than delta, how far
    # at most, and how far delta counts at all
    bounded: bool = True  # False: delta counts whatever the length, as float16 checkpoints need
    calibrated: float | None = None  # a delta that was measured before; it counts as far as widen allows
    distance: str = "l2"
    domain: str = "uint8"  # where pixels must lie
    epoch: int | None = None  # steps; None: all is one epoch
    share: tuple[int, int] = (0, 1)  # the number of this verifier among so many that share the intervals
    exact: bool = True  # where the proof names a machine like this one, bits must be the same
    machines: str = "any"  # or same: others, which delta would have to be granted to, are refused
    strict: bool = True  # False: as the paper has it, without copies, norms, losses and a least length


@dataclass(frozen=True, kw_only=True, eq=False)
class Expected:
    """What the verifier knows without the proof. What it does not know, the verdict says (`unpinned`)."""

    model: nn.Module | None = None  # its weights are overwritten; None: a loop of the verifier's own trains
    task: Task | None = None
    signer: Ed25519PublicKey
    reader: X25519PrivateKey
    round: int = 0
    client: int = 0
    parent: Weights | None = None  # where training must have begun; None: at a random initialisation
    start: Weights | None = None  # the initialisation that follows from the verifier's nonce
    fresh: Callable[[int], Weights] | None = None  # draws initialisations to compare with, without a nonce
    received: Weights | None = None  # what came with the proof
    kind: Kind = "update"  # of it; a gradient is that of one step
    defended: Callable[[Weights], Weights] = lambda reply: reply  # what leaves a client in place of a reply
    learning_rate: float | None = None  # None: any. Pinned, it stops proofs of endlessly small steps
    steps: int | None = None
    every: int | None = None  # None: any. The prover's choice would decide how much is looked at
    batch_size: int | None = None
    precision: str | None = "float32"  # of the checkpoints; float16 would excuse from bits. None: any
    nonce: str | None = None  # the verifier's, in hex; "": none was given; None: any
    num_examples: int | None = None  # that the prover disclosed
    commitment: Commitment | None = None  # to the prover's data, from before it trained
    order: Sequence[tuple[int, ...]] | None = None  # places of each step's examples in that data
    calibration: Calibration | None = None  # the verifier's own, which delta comes from
    final: Weights | None = None  # the model that the proof is said to be of
    owns_data: bool = False  # the verifier has the data itself: what is revealed comes from there

    @property
    def plain(self) -> tuple[nn.Module, Task]:
        """What plain SGD trains, on what."""
        assert self.model is not None
        assert self.task is not None
        return self.model, self.task

    @property
    def form(self) -> Weights:
        """What the checkpoints must look like."""
        if self.model is not None:
            return weights_of(self.model)
        assert self.start is not None  # of a loop
        return self.start

    @property
    def unpinned(self) -> str:
        """What has to be taken from the prover's own word."""
        known = {
            "beginning": self.parent is not None or self.start is not None,
            "learning rate": self.learning_rate is not None or self.model is None,
            "steps": self.steps is not None,
            "checkpoint interval": self.every is not None,
            "batch size": self.batch_size is not None,
            "precision": self.precision is not None,
            "data": self.commitment is not None,
            "order of the data": self.order is not None,
        }
        return ", ".join(name for name, is_known in known.items() if not is_known)


class Rejected(FedsimError):
    """A check that failed."""

    def __init__(self, check: str, reason: str, step: int | None = None) -> None:
        super().__init__(reason)
        self.check, self.step = check, step


MACHINE = "machine"  # where a proof names another than the verifier's, it is taken at its word


def joined(*words: str) -> str:
    """Return what has to be taken from the prover's own word, as a list in words."""
    return ", ".join(word for word in words if word)


@dataclass
class Work:
    """What a verification has cost and found so far."""

    steps: int = 0
    largest: float | None = None
    limit: float | None = None  # the widest that was used
    still: int = 0  # intervals that are no longer than their limit: who did nothing would pass
    looked: int = 0  # intervals
    places: list[int] = field(default_factory=list)  # of those that were drawn
    leaning: Leaning = field(default_factory=Leaning)  # what lies between claims and results, added up
    shown: int = 0  # bytes of data that the prover had to show

    @classmethod
    def of_all(cls, shares: "Sequence[Work]") -> "Work":
        """Return what verifiers who share a proof have found together."""
        return cls(
            still=sum(share.still for share in shares),
            looked=sum(share.looked for share in shares),
            leaning=Leaning.of_all([share.leaning for share in shares]),
        )
