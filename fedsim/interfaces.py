"""What an attack, a defence and a metric have to offer. Everything else finds them by their yaml."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Generator, Tensor, nn

from fedsim.federation import Federation
from fedsim.types import Kind, KnownDefense, Observation, Reconstruction, Score, Task, Truth, Weights


class Attack:
    """A malicious server: it may choose what it broadcasts, and reads private data out of replies."""

    def craft(self, model: nn.Module, task: Task, round: int, weights: Weights) -> Weights:
        """Return what to broadcast in place of the honest weights (honest but curious by default).

        Training goes on from what was sent: an attack that crafts every round gives up on accuracy.
        """
        return weights

    def crafts(self) -> bool:
        """Say whether this attack broadcasts weights of its own."""
        return type(self).craft is not Attack.craft

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Reconstruct one private batch from what was seen of it; `model` holds the last weights sent."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalStep:
    """What a client has in hand when it has computed a gradient."""

    model: nn.Module  # with the weights of this step
    images: Tensor
    labels: Tensor  # (N,) classes, or (N, C) shares of classes


class Defense:
    """A cautious client: overrides the hook that it changes. Order of a list is order of action."""

    bits: float | None = None  # of each number after this defence; None: as many as before it
    keeps_rest: bool = False  # error feedback: what on_reply takes away is added to the client's next reply
    sums_replies: bool = False  # the server gets only the sum over a round's clients

    def rules(self, federation: Federation) -> Federation:
        """Return the rules of the federation to play by."""
        return federation

    def on_batch(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return the batch to train on in place of the private one."""
        return images, labels

    def on_gradient(self, gradient: Weights, step: LocalStep, generator: Generator) -> Weights:
        """Return the gradient to use in place of a local step's batch-mean gradient."""
        return gradient

    def epsilon(self, *, sample_rate: float, steps: int) -> float | None:
        """Return the differential privacy of so many local steps, or None where none is promised."""
        return None

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Return what leaves the client in place of its gradient or update."""
        return reply

    def known(self, num_examples: int | None) -> KnownDefense:
        """Return what its settings tell an attacker; num_examples: in the batch, where it is disclosed."""
        return KnownDefense()


class Metric:
    """A figure of merit of a reconstruction against the truth."""

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score a guess, or return None when it does not claim what this metric measures."""
        raise NotImplementedError
