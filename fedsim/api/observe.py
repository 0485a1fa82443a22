"""What a server would see of a batch, without a federation; or what it saw, as an Observation."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.config.parts import parts
from fedsim.core.errors import FedsimError
from fedsim.core.federation import Federation
from fedsim.core.inputs import Inputs, Tokens
from fedsim.core.interfaces import Defense
from fedsim.core.tasks import task_of
from fedsim.core.training import weights_of
from fedsim.core.types import BatchNormMode, Kind, Observation, Task, Weights
from fedsim.flower.local_round import defended, local_round
from fedsim.flower.setups import ClientSetup
from fedsim.lab.assess import as_known
from fedsim.models.batch_norm import set_batch_norm

ROUND, CLIENT = 1, 0  # of the one reply that there is


def observe(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    defenses: Sequence[Defense | str] = (),
    knows_defenses: bool = False,
    kind: Kind = "gradient",
    local_steps: int = 1,
    learning_rate: float | None = None,
    disclose: Sequence[str] = ("num_examples", "learning_rate", "local_steps"),
    batch_norm: BatchNormMode = "eval",
    inputs: Inputs | None = None,
    seed: int = 0,
) -> Observation:
    """Return what a server sees of a client that was sent this model and owns these images.

    The client does what those of a federation do: a gradient, or with kind="update" so many local_steps at
    a learning_rate, each on an equal part of the images. The model, which takes pixels in [0, 1], is left
    as it is, and runs in evaluation mode. knows_defenses: the attacker is told the defenses' settings.
    inputs: what a data set's task says of them, if they are no images.
    """
    chosen: tuple[Defense, ...] = parts("defense", defenses)
    own = copy.deepcopy(model).eval()
    set_batch_norm(own, batch_norm)
    task = task_of(own, tuple(images.shape[1:]), inputs=inputs)
    _check_batch(images, labels, task)
    setup = ClientSetup(
        model=own,
        train=_Batch(images.detach().cpu(), labels.detach().cpu()),
        shares=(torch.arange(len(labels)),),
        federation=_rules(chosen, len(labels), kind, local_steps, learning_rate, disclose, batch_norm),
        defenses=chosen,
        behaviours=(),
        audit=None,
        task=task,
        seed=seed,
        device=str(next(own.parameters()).device),
        threads=torch.get_num_threads(),
    )
    sent = weights_of(own)
    received, disclosed = _reply(setup, sent)
    seen = Observation(
        round=ROUND,
        client=CLIENT,
        sent=sent,
        received=received,
        kind=setup.federation.reply_kind,
        batch_norm=batch_norm,
        **disclosed,
    )
    return as_known(seen, chosen) if knows_defenses else seen


def observation(
    model: nn.Module,
    gradients: Sequence[Tensor | None] | Mapping[str, Tensor],
    *,
    kind: Kind = "gradient",
    num_examples: int | None = None,
    learning_rate: float | None = None,
    local_steps: int | None = None,
    class_counts: Sequence[int] | None = None,
    batch_norm: BatchNormMode = "eval",
) -> Observation:
    """Return gradients of one's own as an Observation: `torch.autograd.grad`'s, or by parameter name.

    They are of the model as it is now, and of the mean loss over the batch. kind="update": new weights less
    old ones. What is not given is not disclosed.
    """
    sent = weights_of(model)
    if not isinstance(gradients, Mapping):
        if len(gradients) != len(sent):
            raise FedsimError(
                f"gradients: expected one for each of the model's {len(sent)} parameters, got "
                f"{len(gradients)}. Remedy: torch.autograd.grad(loss, model.parameters())."
            )
        given = zip(sent, gradients, strict=True)  # None: the loss does not depend on it
        gradients = {name: torch.zeros_like(sent[name]) if g is None else g for name, g in given}
    return Observation(
        round=ROUND,
        client=CLIENT,
        sent=sent,
        received={name: gradient.detach().cpu().clone() for name, gradient in gradients.items()},
        kind=kind,
        num_examples=num_examples,
        learning_rate=learning_rate,
        local_steps=local_steps,
        class_counts=class_counts,
        batch_norm=batch_norm,
    )


@dataclass(frozen=True, eq=False)
class _Batch:
    """The images of the one client."""

    images: Tensor
    labels: Tensor

    def batch(self, indices: Tensor) -> Tensor:
        """Read the images at these indices."""
        return self.images[indices]


def _reply(setup: ClientSetup, sent: Weights) -> tuple[Weights, Mapping[str, Any]]:
    """Return a client's defended reply, and what it discloses: a federation's own code."""
    done = local_round(setup, sent, ROUND, CLIENT)
    return defended(setup, done.claim.update, {}, ROUND, CLIENT).reply, done.disclosed


def _rules(
    defenses: Sequence[Defense],
    size: int,
    kind: Kind,
    local_steps: int,
    learning_rate: float | None,
    disclose: Sequence[str],
    batch_norm: BatchNormMode,
) -> Federation:
    """Return the rules that the client plays by, as its defenses change them."""
    if kind == "gradient" and (local_steps != 1 or learning_rate is not None):
        raise FedsimError(
            f"observe: a gradient is of one step, got local_steps={local_steps}, "
            f'learning_rate={learning_rate}. Remedy: kind="update".'
        )
    if kind == "update" and learning_rate is None:
        raise FedsimError('observe: kind="update" expects a learning_rate, got none. Remedy: 0.05.')
    rules = Federation(
        clients=1,
        rounds=1,
        mode="fedsgd" if kind == "gradient" else "fedavg",
        local_steps=local_steps,
        local_lr=0.05 if learning_rate is None else learning_rate,
        batch_norm=batch_norm,
        disclose=tuple(disclose),
    )
    for given in defenses:
        if given.sums_replies:
            raise FedsimError(
                f"observe: {type(given).__name__} adds up the replies of many clients, and there is one. "
                'Remedy: fedsim.run("defense=[secure_aggregation]").'
            )
        rules = given.rules(rules)
    if size % rules.local_steps:
        raise FedsimError(f"observe: {size} images do not divide into {rules.local_steps} equal local steps")
    return dataclasses.replace(rules, batch_size=size // rules.local_steps)


def _check_batch(images: Tensor, labels: Tensor, task: Task) -> None:
    """Refuse what is no batch of images in [0, 1], or of the task's tokens, with classes of the model's."""
    if isinstance(task.inputs, Tokens):
        size = len(task.inputs.vocabulary)
        whole = images.dtype == torch.int64 and images.shape[1:] == task.input_shape and len(images) > 0
        if not whole or not 0 <= int(images.min()) <= int(images.max()) < size:
            raise FedsimError(
                f"tokens: expected int64 (N, {task.inputs.length}) from 0 to {size - 1}, "
                f"got {images.dtype} {tuple(images.shape)}"
            )
        return
    num_classes = task.num_classes
    if not images.numel():
        raise FedsimError(f"images: expected at least one, got shape {tuple(images.shape)}")
    if not images.is_floating_point() or float(images.min()) < 0 or float(images.max()) > 1:
        raise FedsimError(
            f"images: expected pixels in [0, 1], got {images.dtype} from {float(images.min()):.3g} to "
            f"{float(images.max()):.3g}. Remedy: let the model normalise, as in "
            "nn.Sequential(torchvision.transforms.Normalize(mean, std), model), and tell the attack of it."
        )
    whole = labels.dtype == torch.int64 and labels.shape == images.shape[:1]
    if not whole or int(labels.min()) < 0 or int(labels.max()) >= num_classes:
        raise FedsimError(
            f"labels: expected {len(images)} int64 from 0 to {num_classes - 1}, "
            f"got {labels.dtype} {tuple(labels.shape)}: {str(labels.flatten()[:8].tolist())[:-1]}, ...]"
        )
