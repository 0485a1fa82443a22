"""What an attack, a defence and a metric have to offer. Everything else finds them by their yaml."""

from collections.abc import Sequence

from torch import Generator, Tensor, nn

from fedsim.types import Kind, Observation, Reconstruction, Score, Task, Truth, Weights


class Attack:
    """A malicious server: it may choose what it broadcasts, and reads private data out of replies."""

    def craft(self, model: nn.Module, task: Task, round: int, weights: Weights) -> Weights:
        """Return what to broadcast in place of the honest weights (honest but curious by default).

        Training goes on from what was sent: an attack that crafts every round gives up on accuracy.
        """
        return weights

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Reconstruct one private batch from what was seen of it; `model` holds the last weights sent."""
        raise NotImplementedError


class Defense:
    """A cautious client: overrides the hook that it changes. Order of a list is order of action."""

    def on_batch(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return the batch to train on in place of the private one."""
        return images, labels

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Return what leaves the client in place of its gradient or update."""
        return reply


class Metric:
    """A figure of merit of a reconstruction against the truth."""

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score a guess, or return None when it does not claim what this metric measures."""
        raise NotImplementedError
