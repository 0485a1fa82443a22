"""Images whose features are known: terms that hold them there, and errors in place of labels.

An exact attack on the linear layers behind the convolutions tells what enters them, example by example. Then
the slope of each example's loss by its features is known, too: the convolutions' gradient is that of
<features, errors>, which needs nothing of what lies behind, and every image has its features to meet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.attacks.privacy.matching.priors import Term
from fedsim.core.errors import FedsimError
from fedsim.core.types import Reconstruction, Task


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownFeatures:
    """Features of the first images of a batch, at a layer of a model that notes what enters it."""

    inputs: Tensor  # (n, features)
    errors: Tensor  # (n, features): slopes of the batch's loss
    size: int  # of the batch, at least n
    weight: float
    behind: Sequence[bool]  # of each parameter: it acts on the features, not towards them
    entering: list[Tensor] = field(default_factory=list)  # the layer, since it was last read

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return a loss with the batch's gradient: errors where they are known, cross-entropy elsewhere."""
        known = len(self.inputs)
        total = (self.entering[-1][:known] * self.errors).sum()
        if known < self.size:
            rest = functional.cross_entropy(logits[known:], labels[known:], reduction="sum")
            total = total + rest / self.size
        return total

    def penalty(self, images: Tensor, done: float = 1.0) -> Term:
        """Return the squared error of each image's features, relative to their length, as a mean."""
        seen = torch.stack(self.entering[-len(images) :])[:, : len(self.inputs)]
        self.entering.clear()
        lengths = self.inputs.square().sum(dim=1)
        gaps = (seen - self.inputs).square().sum(dim=2) / lengths.clamp(min=1e-3 * float(lengths.mean()))
        value = self.weight * gaps.mean()
        return float(value.detach()), value, None


def known_features(
    model: nn.Module, task: Task, found: Reconstruction, size: int, weight: float
) -> KnownFeatures | None:
    """Tie features with labels to a model, from now on; None: none were found, or images in their place."""
    if found.embeddings is None or found.embedding_layer is None or found.labels is None:
        return None
    try:
        layer = model.get_submodule(found.embedding_layer)
    except AttributeError as error:
        raise FedsimError(
            f"attack.features: expected features of a layer of the model, got those of "
            f"{found.embedding_layer!r}. Remedy: attack.features of this model."
        ) from error
    sample = next(model.parameters())
    inputs = found.embeddings[:size].to(sample)
    if not bool(inputs.any()):
        return None
    labels = found.labels[: len(inputs)].to(sample.device)
    probe = torch.rand(2, *task.input_shape, generator=torch.Generator().manual_seed(0)).to(sample)
    entering, forced = list[Tensor](), inputs.detach().requires_grad_()
    note = layer.register_forward_pre_hook(lambda module, given: entering.append(given[0]))
    with torch.enable_grad():
        model(probe)
    note.remove()
    force = layer.register_forward_pre_hook(lambda module, given: (forced,))
    with torch.enable_grad():
        logits = model(probe.new_zeros(len(inputs), *task.input_shape))
    force.remove()
    loss = functional.cross_entropy(logits, labels, reduction="sum") / size
    towards = torch.autograd.grad(entering[0].sum(), list(model.parameters()), allow_unused=True)
    known = KnownFeatures(
        inputs=inputs,
        errors=torch.autograd.grad(loss, forced)[0],
        size=size,
        weight=weight,
        behind=[slope is None for slope in towards],
    )
    layer.register_forward_pre_hook(lambda module, given: known.entering.append(given[0]))
    return known
