"""Which labels the dummy images carry: restored, searched along with them, or given."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Generator, Tensor, nn

from fedsim.attacks.privacy import claims
from fedsim.attacks.privacy.labels.counts import repair_counts
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.settings import listed, whole
from fedsim.core.types import Observation, Reconstruction, Task


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedLabels:
    """Labels that stay as they are during the search, and what may be claimed as recovered."""

    labels: Tensor  # (K,) int64
    recovered: Reconstruction | None  # None: they were given


class LabelSource:
    """Where the labels come from."""

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model whose labels cannot be told, as far as its structure says."""

    def fixed(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> FixedLabels | None:
        """Return labels for the dummy images before the search, or None when they are searched for."""
        return None


class Restored(LabelSource):
    """Labels from a label attack, dealt out to the dummy images: the batch has no order, so any will do.

    Paper: Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023),
    section 4.4.
    """

    def __init__(self, *, attack: Attack) -> None:
        """Set the attack that restores counts, or presence of classes, which are then dealt out in turn."""
        self.attack = attack

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that the label attack refuses."""
        self.attack.check(model, task)

    def fixed(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> FixedLabels:
        """Run the label attack and deal its classes out."""
        found = self.attack.run(model, task, observations)
        size = observations[-1].num_examples
        if found.class_counts is not None and int(found.class_counts.sum()) > 0:
            counts = found.class_counts
            if size is not None and int(counts.sum()) != size:
                counts = repair_counts(counts.double() / counts.sum(), size)
            labels = torch.arange(len(counts)).repeat_interleave(counts)
        elif found.class_presence is not None and bool(found.class_presence.any()):
            present = found.class_presence.nonzero().flatten()
            labels = present[torch.arange(size or len(present)) % len(present)]
        else:
            raise FedsimError(
                f"attack.labels: {type(self.attack).__name__} restored no label. "
                "Remedy: another label attack in attack.labels.attack, or attack=ig_joint."
            )
        return FixedLabels(labels=_in_turn(labels, observations[-1].local_steps or 1), recovered=found)


class Given(LabelSource):
    """Labels that the server was told: disclosed counts, or a list in the config. Never scored."""

    def __init__(self, *, labels: Sequence[int] | None = None) -> None:
        """Set the labels; None: the class counts that the clients disclose."""
        self.labels = labels

    def fixed(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> FixedLabels:
        """Return the labels that were given."""
        if self.labels is not None:
            most = task.num_classes - 1
            a_class = partial(whole, least=0, most=most)
            given = listed("attack.labels.labels", list(self.labels), f"classes from 0 to {most}", a_class)
            labels = torch.tensor(given, dtype=torch.int64)
        elif (counts := claims.class_counts(observations[-1], task)) is not None:
            labels = torch.arange(task.num_classes).repeat_interleave(counts)
        else:
            raise FedsimError(
                "attack.labels: the clients do not disclose their class counts. Remedy: "
                "add class_counts to federation.disclose, or list the labels in attack.labels.labels."
            )
        return FixedLabels(labels=_in_turn(labels, observations[-1].local_steps or 1), recovered=None)


class Joint(LabelSource):
    """Label vectors that are searched for along with the images, as in DLG.

    Paper: Zhu et al., Deep Leakage from Gradients (NeurIPS 2019).
    """

    def __init__(self, *, shared: bool = False) -> None:
        """Choose a label vector for each image, or one shared by the whole batch."""
        self.shared = shared

    def draw(self, size: int, task: Task, generator: Generator) -> Tensor:
        """Return first label logits."""
        return torch.randn(1 if self.shared else size, task.num_classes, generator=generator)

    def read(self, logits: Tensor, size: int) -> Reconstruction:
        """Return the labels that the search ended with."""
        if self.shared:
            counts = repair_counts(logits[0].softmax(dim=0).double().cpu(), size)
        else:
            counts = logits.argmax(dim=1).cpu().bincount(minlength=logits.shape[1])
        return Reconstruction(class_counts=counts, class_presence=counts > 0)


def _in_turn(labels: Tensor, steps: int) -> Tensor:
    """Spread the classes over the local steps' batches, which follow one another in the dummy batch."""
    if steps == 1:
        return labels
    return torch.cat([labels[step::steps] for step in range(steps)])


def agreeing(fixed: FixedLabels, begun: Reconstruction) -> FixedLabels:
    """Let images to start from keep the labels that came with them; the others get what is left."""
    assert begun.labels is not None
    known, left = begun.labels.tolist()[: len(fixed.labels)], fixed.labels.tolist()
    if len(known) == len(left) and fixed.recovered is not None and begun.class_counts is not None:
        return FixedLabels(labels=torch.tensor(known, dtype=torch.int64), recovered=begun)
    for label in known:
        if label in left:
            left.remove(label)
    labels = torch.tensor((known + left)[: len(fixed.labels)], dtype=torch.int64)
    return FixedLabels(labels=labels, recovered=fixed.recovered)
