"""The values that pass between modules: frozen, keyword-only, checked when they are made."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Inputs, Tokens

Weights = Mapping[str, Tensor]  # parameter name -> tensor, as in model.named_parameters()
Kind = Literal["gradient", "update"]
BatchNormMode = Literal["eval", "train"]  # statistics: running ones, or of the private batch


@dataclass(frozen=True, kw_only=True)
class Task:
    """What everybody in the federation knows about the learning problem."""

    input_shape: tuple[int, ...]  # (channels, height, width); of tokens (length,)
    num_classes: int
    mean: tuple[float, ...] = (0.0,)  # of each channel: the model's first layer normalises with them
    std: tuple[float, ...] = (1.0,)
    inputs: Inputs | None = None  # what an input is; None: an image

    def __post_init__(self) -> None:
        if self.inputs is not None and self.input_shape != self.inputs.shape:
            raise FedsimError(f"input_shape: expected {self.inputs.shape}, got {self.input_shape}")
        axes = 1 if isinstance(self.inputs, Tokens) else 3
        if len(self.input_shape) != axes or min(self.input_shape) < 1:
            raise FedsimError(f"input_shape: expected (channels, height, width), got {self.input_shape}")
        if self.num_classes < 2:
            raise FedsimError(f"num_classes: expected at least 2, got {self.num_classes}")
        for name in ("mean", "std"):
            if axes == 3 and len(getattr(self, name)) not in (1, self.input_shape[0]):
                raise FedsimError(
                    f"{name}: expected one value or one for each of the {self.input_shape[0]} channels, "
                    f"got {getattr(self, name)}"
                )
        if min(self.std) <= 0:
            raise FedsimError(f"std: expected positive values, got {self.std}")

    @property
    def num_tokens(self) -> int:
        """Tokens that there are; 0: inputs are none."""
        return len(self.inputs.vocabulary) if isinstance(self.inputs, Tokens) else 0


ALL = -1  # in place of a client's number: the sum over a round's clients


@dataclass(frozen=True, kw_only=True)
class KnownDefense:
    """What an attacker makes of a defense whose settings it knows."""

    noise: float = 0.0  # deviation of the noise on every entry received
    relative_noise: float = 0.0  # the same, in units of each tensor's root mean square before the noise
    zeros: bool = False  # entries that are exactly zero were left out

    def deviation(self, received: Tensor) -> float:
        """Return the deviation of the noise on a tensor's entries."""
        size = float(received.double().square().mean().sqrt())
        return math.hypot(self.noise, self.relative_noise * size / math.hypot(1, self.relative_noise))


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """Everything that the server saw of one client in one round, and nothing else."""

    round: int
    client: int  # ALL: the replies of `clients` came as one sum
    sent: Weights  # what the server broadcast
    received: Weights  # what the client answered
    kind: Kind  # a batch-mean gradient, or new weights - sent
    learning_rate: float | None = None  # None: not disclosed
    local_steps: int | None = None
    num_examples: int | None = None
    loss: float | None = None
    class_counts: Sequence[int] | None = None  # of each class; None: not disclosed
    batch_norm: BatchNormMode = "eval"  # the rule of the federation, known to everybody
    bytes: int | None = None  # of the reply on the wire
    clients: Sequence[int] | None = None  # whose replies were added up; None: this client's alone
    defense: KnownDefense | None = None  # None: the attacker was not told of it

    def __post_init__(self) -> None:
        if self.batch_norm not in ("eval", "train"):
            raise FedsimError(f"batch_norm: expected 'eval' or 'train', got {self.batch_norm!r}")
        if self.kind not in ("gradient", "update"):
            raise FedsimError(f"kind: expected 'gradient' or 'update', got {self.kind!r}")
        if problem := reply_problem(self.received, self.sent):
            raise FedsimError(problem)


def form_problem(received: Weights, sent: Weights) -> str | None:
    """Say where names, shapes or types of tensors differ from those sent, or None."""
    if missing := sent.keys() - received.keys():
        return f"missing tensor {min(missing)!r} (expected {len(sent)} tensors, got {len(received)})"
    if unknown := received.keys() - sent.keys():
        return f"unknown tensor {min(unknown)!r} (expected only the {len(sent)} that were sent)"
    for name, tensor in received.items():
        if tensor.shape != sent[name].shape:
            return f"tensor {name!r}: expected shape {tuple(sent[name].shape)}, got {tuple(tensor.shape)}"
        if tensor.dtype != sent[name].dtype:
            return f"tensor {name!r}: expected {sent[name].dtype}, got {tensor.dtype}"
    return None


def reply_problem(received: Weights, sent: Weights) -> str | None:
    """Say what is wrong with a reply to `sent`, or None when it is well formed."""
    if problem := form_problem(received, sent):
        return problem
    for name, tensor in received.items():
        # A sum is NaN or infinite if any element is, and costs a fraction of testing each of them.
        if not math.isfinite(tensor.sum()) and not bool(torch.isfinite(tensor).all()):
            kind = "NaN" if bool(torch.isnan(tensor).any()) else "an infinity"
            return f"tensor {name!r} holds {kind}"
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Reconstruction:
    """What an attack recovered; None: it did not recover this (or was given it)."""

    images: Tensor | None = None  # (N, C, H, W) in [0, 1]
    tokens: Tensor | None = None  # (N, length) int64; -1: this place was not recovered
    token_presence: Tensor | None = None  # (vocabulary,) bool: which tokens; (width of a row,): categories
    labels: Tensor | None = None  # (N,) int64: of each of these images
    class_presence: Tensor | None = None  # (num_classes,) bool: which classes are in the batch
    class_counts: Tensor | None = None  # (num_classes,) int64: how many of each
    count_bounds: Tensor | None = None  # (2, num_classes) int64: fewest and most of each class
    embeddings: Tensor | None = None  # (num_classes, features): mean inputs of the last layer, by class
    embedding_layer: str | None = None  # a name: `embeddings` are (N, features), inputs of this linear layer
    probabilities: Tensor | None = None  # (num_classes, num_classes): mean softmax of each class's examples
    certified: Tensor | None = (
        None  # (N,) bool: of each image, text, or example of embeddings; None: no certificates
    )
    prior_alone: Tensor | None = None  # (N, C, H, W): what a learnt prior makes of nothing, without gradient
    trace: tuple[float, ...] = ()  # the attack's own objective over its iterations
    seconds: float = 0.0
    residual: float | None = None  # the attack's own residual: small is sure

    def __post_init__(self) -> None:
        if self.images is not None and self.images.ndim != 4:
            raise FedsimError(f"images: expected (N, C, H, W), got {tuple(self.images.shape)}")
        if self.tokens is not None and (self.tokens.ndim != 2 or self.tokens.dtype != torch.int64):
            raise FedsimError(
                f"tokens: expected int64 (N, length), got {self.tokens.dtype} {tuple(self.tokens.shape)}"
            )
        if self.class_counts is not None and (
            self.class_counts.ndim != 1 or self.class_counts.dtype != torch.int64
        ):
            raise FedsimError(
                "class_counts: expected one int64 for each class, "
                f"got {self.class_counts.dtype} {tuple(self.class_counts.shape)}"
            )
        if self.count_bounds is not None and (
            self.count_bounds.ndim != 2
            or len(self.count_bounds) != 2
            or self.count_bounds.dtype != torch.int64
        ):
            raise FedsimError(
                "count_bounds: expected int64 (2, number of classes), "
                f"got {self.count_bounds.dtype} {tuple(self.count_bounds.shape)}"
            )
        for name, each in (("class_presence", "class"), ("token_presence", "token")):
            told = getattr(self, name)
            if told is not None and (told.ndim != 1 or told.dtype != torch.bool):
                raise FedsimError(
                    f"{name}: expected one bool for each {each}, got {told.dtype} {tuple(told.shape)}"
                )
        if self.certified is not None and (
            self.certified.ndim != 1
            or self.certified.dtype != torch.bool
            or self._examples != len(self.certified)
        ):
            raise FedsimError(
                f"certified: expected one bool for each of {self._examples} examples, "
                f"got {self.certified.dtype} {tuple(self.certified.shape)}"
            )
        for name in ("images", "embeddings", "probabilities", "prior_alone"):
            found = getattr(self, name)
            if found is not None and not bool(torch.isfinite(found).all()):
                raise FedsimError(
                    f"{name}: expected finite numbers, got NaN or infinite ones: no batch has this gradient. "
                    "Remedy: distrust this client, or weaker defenses."
                )

    @property
    def _examples(self) -> int | None:
        shown = (self.images, self.tokens, self.embeddings)
        return next((len(rows) for rows in shown if rows is not None), None)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of an attack that has something to show for it."""

    def __init__(self, guess: Reconstruction) -> None:
        super().__init__()
        self.guess = guess


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """The private batch behind one observation; metrics alone may read it."""

    round: int
    client: int
    images: Tensor  # (N, C, H, W) in [0, 1]; tokens: int64 (N, length)
    labels: Tensor  # (N,) int64; of next tokens (N, length), below 0 where there is none
    inputs: Inputs | None = None  # what the task says of them: the evaluator's; None: images
    embeddings: Tensor | None = None  # (N, m) into the guess's layer of the model sent: the evaluator's
    probabilities: Tensor | None = None  # (N, num_classes) softmax of the model sent: the evaluator's

    def __post_init__(self) -> None:
        right = 4 if self.images.is_floating_point() else 2  # axes
        if self.images.ndim != right or self.labels.shape[:1] != self.images.shape[:1]:
            raise FedsimError(
                "truth: expected images (N, C, H, W) or tokens (N, length), and N labels, "
                f"got {tuple(self.images.shape)} and {tuple(self.labels.shape)}"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicImages:
    """Labelled images, or other inputs, that everybody has, none of them a client's."""

    images: Tensor  # (N, C, H, W) in [0, 1]; tokens: int64 (N, length)
    labels: Tensor  # (N,) int64


@dataclass(frozen=True, kw_only=True)
class Score:
    """One number of the report, with what a guess that saw nothing would have got."""

    metric: str
    value: float
    baseline: float | None = None
    per_example: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for figure in (self.value, self.baseline):  # which would be the mean's, too
            if figure is not None and not math.isfinite(figure):
                raise FedsimError(
                    f"{self.metric}: expected a finite number, got {figure}. "
                    "Remedy: look at this client's reply, or leave the metric out."
                )


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A client that did not give a usable reply, or an attack that failed on one."""

    round: int
    client: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """How well the global model does after a round (round 0: before training)."""

    round: int
    accuracy: float
    loss: float
    seconds: float = field(default=0.0, compare=False)  # since the first round began


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What an audit finds of one client's work in one round."""

    round: int
    client: int
    accepted: bool
    check: str = ""  # the one that failed
    reason: str = ""
    step: int | None = None  # at which it failed
    distance: float | None = None  # the largest between a recomputed checkpoint and the claimed one
    limit: float | None = None  # how large it may be
    recomputed: int = 0  # steps
    steps: int = 0  # that were claimed
    seconds: float = 0.0
    bytes: int = 0  # of the proof
    unseen: float | None = None  # chance that one false interval was not among those done again
    unpinned: str = ""  # what the verifier took from the prover's own word
    shown: int = 0  # bytes of data that the prover had to show
