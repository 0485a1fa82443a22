"""Trained on other data than it says.

What it gains: a say in the model that its data would not give it, such as that of flipped labels.
Paper: Jia et al., Proof-of-Learning (S&P 2021), section IV; Thudi et al. (USENIX Security 2022).
Assumes: nobody does its steps again with the data that it names.
Caught by: any recomputed step, where it names its own data. Where it shows what it used (shows=used), it is
    accepted: a proof says that this data was trained on, not that the data is good.
"""

from dataclasses import replace

from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number, one_of
from fedsim.core.training import Batch, Claim, LocalWork, honest, trace_of
from fedsim.core.types import Task


class WrongData(Behaviour):
    """Trains with every label moved to the next class."""

    def __init__(self, *, shows: str = "own", strength: float = 1.0) -> None:
        """Say whether it shows its `own` batches or those it `used`; strength: times the learning rate."""
        self.shows = one_of("client.wrong_data.shows", shows, ("own", "used"))
        self.strength = number("client.wrong_data.strength", strength, above=0)

    def data(self, own: Batch, task: Task) -> Batch:
        """Commit to what it will show."""
        return _flipped(own, task.num_classes) if self.shows == "used" else own

    def train(self, work: LocalWork) -> Claim:
        """Train on flipped labels."""

        def flipped(batch: Batch) -> Batch:
            return _flipped(batch, work.task.num_classes)

        rate = work.learning_rate * self.strength
        done = honest(replace(work, learning_rate=rate, on_batch=lambda step, batch: flipped(batch)))
        shown = tuple(map(flipped, done.batches)) if self.shows == "used" else done.batches
        trace = done.trace and trace_of(work, done.trace.checkpoints, shown)
        return replace(done, batches=shown, trace=trace)


def _flipped(batch: Batch, classes: int) -> Batch:
    return replace(batch, labels=(batch.labels + 1) % classes)
