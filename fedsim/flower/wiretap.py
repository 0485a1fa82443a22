"""A wiretap on any Flower strategy: training goes on as before, and what the server sees is kept.

    strategy = Wiretap(FedAvg(), "tapped", model=Net, task=Task(input_shape=(3, 32, 32), num_classes=10))

Every message passes through as it is. The folder is a run folder whose clients go by
their Flower node ids; `fedsim replay tapped attack=...` attacks it. Whatever goes wrong here is logged, kept
as a fault and never reaches the training.
"""

import copy
import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor, nn

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.randomness import undisturbed
from fedsim.core.types import BatchNormMode, Task, Truth
from fedsim.flower.listener import Listener
from fedsim.flower.observations import Dialect, Replies, training_settings
from fedsim.models.foreign import import_path, made, normalising
from fedsim.storage.runfolder import RunFolder

__all__ = ["Task", "Wiretap", "keep_truth"]
flower = logging.getLogger("flwr")  # what a user of `flwr run` sees


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """A strategy's own hooks, as they were before they were tapped."""

    configure_train: Callable[..., Iterable[Message]]
    aggregate_train: Callable[..., tuple[ArrayRecord | None, MetricRecord | None]]


class Wiretap(Strategy):
    """A strategy that does what the wrapped one does, and keeps what was sent and what came back."""

    _wrapped: Strategy
    _hooks: Hooks
    _listener: Listener

    def __init__(
        self,
        strategy: Strategy,
        folder: str | Path,
        *,
        attack: Attack | None = None,
        every: int = 1,
        model: nn.Module | Callable[[], nn.Module] | None = None,
        task: Task | None = None,
        replies: Replies = "weights",
        batch_norm: BatchNormMode = "train",
        learning_rate: float | None = None,
        local_steps: int | None = None,
    ) -> None:
        """Tap a strategy into a new folder.

        model: what the clients train, for attacks and replays: its class, or a function that makes it, and
        then the app's random numbers stay as they are (`model=Net()` has drawn some before we are called).
        attack: attack each tapped round at once, too; needs the model and the task. every: tap the first
        round and each so many rounds after it. task: the form of the data; noted for replays.
        replies: what clients answer with: new weights, their difference from those sent, or a gradient.
        batch_norm: what the clients' BatchNorm layers use in training: the batch's statistics (train).
        learning_rate, local_steps: of a client's training, where no message tells them.
        """
        if not isinstance(strategy, Strategy):
            raise FedsimError(
                f"Wiretap: expected a strategy of flwr.serverapp.strategy, got {type(strategy).__name__}. "
                "Remedy: move the app to Flower's message API."
            )
        own_model, model_path = _model(model, task)
        listener = Listener(
            folder=RunFolder(Path(folder).expanduser().resolve()),
            attack=attack,
            every=every,
            model=own_model,
            task=task,
            dialect=_dialect(strategy, replies, batch_norm),
            settings=training_settings(learning_rate=learning_rate, local_steps=local_steps),
        )
        hooks = Hooks(configure_train=strategy.configure_train, aggregate_train=strategy.aggregate_train)
        own = {"_wrapped": strategy, "_hooks": hooks, "_listener": listener}
        for name, value in own.items():  # all other attributes are the strategy's
            object.__setattr__(self, name, value)
        _begin(listener, strategy.__class__.__name__, model_path)
        flower.info("Wiretap: observations go to %s", listener.folder.path)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Have the strategy ask, and note what."""
        messages = self._hooks.configure_train(server_round, arrays, config, grid)
        return self._listener.asked(server_round, messages)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Note the replies, have the strategy aggregate them, then attack what was noted, if wanted."""
        result = self._hooks.aggregate_train(server_round, self._listener.answered(server_round, replies))
        self._listener.ended(server_round)
        return result

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave it to the strategy."""
        return self._wrapped.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Leave it to the strategy."""
        return self._wrapped.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Leave it to the strategy."""
        self._wrapped.summary()

    def start(self, *arguments: Any, **named: Any) -> Result:
        """Play all rounds as the strategy does."""
        wrapped = self._wrapped
        if type(wrapped).start is Strategy.start:
            return Strategy.start(self, *arguments, **named)
        # A start of its own calls its own hooks: let these be ours for as long as it runs.
        before = {name: vars(wrapped).get(name) for name in ("configure_train", "aggregate_train")}
        try:
            for name in before:
                object.__setattr__(wrapped, name, getattr(self, name))
            return wrapped.start(*arguments, **named)
        finally:
            for name, own in before.items():
                if own is None:
                    object.__delattr__(wrapped, name)
                else:
                    object.__setattr__(wrapped, name, own)

    def keep_truth(self, *, round: int, client: int, images: Tensor, labels: Tensor) -> None:
        """Save the batch behind a reply, so that replays are scored; see the function of this name."""
        path = self._listener.folder.path
        keep_truth(path, round=round, client=client, images=images, labels=labels)

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """Pass for the wrapped strategy: Flower's accounted privacy asks whether it is a FedAvg."""
        return self._wrapped.__class__

    def __getattr__(self, name: str) -> Any:
        if name in Wiretap.__annotations__:  # not set yet, as in a copy: do not look for them in themselves
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._wrapped, name, value)

    def __repr__(self) -> str:
        return f"Wiretap({self._wrapped!r})"


def keep_truth(folder: str | Path, *, round: int, client: int, images: Tensor, labels: Tensor) -> None:
    """Save the private batch behind a reply, so that replays are scored: for experiments, from anywhere.

    round: the message's config has it as "server-round". client: the node id, context.node_id on the client.
    images: (N, C, H, W) in [0, 1], as they are before any normalisation; of texts int64 (N, length).
    """
    path, images = Path(folder).expanduser().resolve(), images.detach().cpu()
    if not (path / "config.yaml").is_file():
        raise FedsimError(f"keep_truth: {path} is no tapped folder. Remedy: the folder that the Wiretap has.")
    tokens = images.dtype == torch.int64 and images.ndim == 2
    fits = (tokens or (images.is_floating_point() and images.ndim == 4)) and len(images) == len(labels) > 0
    if not fits or not float(images.min()) >= 0 or not (tokens or float(images.max()) <= 1):  # nor NaN
        raise FedsimError(
            "keep_truth: expected floats of shape (N, C, H, W) in [0, 1] or int64 tokens (N, length), with N "
            "labels, got "
            f"{images.dtype} of shape {tuple(images.shape)} with {len(labels)} labels. "
            "Remedy: the images before they are normalised, divided by 255 if they are bytes."
        )
    labels = labels.detach().cpu().long()
    RunFolder(path).keep_truth(Truth(round=round, client=client, images=images, labels=labels))


def _dialect(strategy: object, replies: Replies, batch_norm: BatchNormMode) -> Dialect:
    """Return how a foreign app's replies are read: by the names that Flower's examples use."""
    examples = ("num-examples", "num_examples")
    return Dialect(
        replies=replies,
        batch_norm=batch_norm,
        strict=False,
        arrays=_setting(strategy, "arrayrecord_key", "arrays"),
        learning_rate=("learning-rate", "learning_rate", "lr"),
        local_steps=("local-steps", "local_steps"),
        num_examples=(_setting(strategy, "weighted_by_key", examples[0]), *examples),
        loss=("train_loss", "train-loss", "loss"),
    )


def _setting(strategy: object, name: str, default: str) -> str:
    """Return a setting of a strategy, or of the one that it wraps."""
    while strategy is not None:
        if isinstance(found := getattr(strategy, name, None), str):
            return found
        strategy = getattr(strategy, "strategy", None)
    return default


def _model(
    given: nn.Module | Callable[[], nn.Module] | None, task: Task | None
) -> tuple[nn.Module | None, str | None]:
    """Return a model of our own that takes the task's pixels, and where replays import it from."""
    if given is None:
        return None, None
    with undisturbed():  # making a model draws random numbers, and the app may make its own afterwards
        model = made(given)
        own = None if task is None else normalising(copy.deepcopy(model), task)
    kind = type(model)
    return own, import_path(kind) if model is given else import_path(given, kind)


def _begin(listener: Listener, strategy: str, model: str | None) -> None:
    """Write the folder's config.yaml: what a replay needs beside the observations."""
    attack = "none" if listener.attack is None else type(listener.attack).__name__
    task = None if listener.task is None else asdict(listener.task)
    config = {
        "name": "wiretap",
        "choices": {"attack": attack, "model": model or "unknown", "data": "tapped"},
        "wiretap": {
            "strategy": strategy,
            "every": listener.every,
            "replies": listener.dialect.replies,
            "model": model,
            "task": task and {key: list(v) if isinstance(v, tuple) else v for key, v in task.items()},
        },
    }
    listener.folder.begin("wiretap", yaml.safe_dump(config, sort_keys=False))
