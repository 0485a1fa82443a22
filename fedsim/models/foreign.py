"""Models that are not ours: any nn.Module by its import path, made to fit what was sent over Flower."""

import dataclasses
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.core.errors import FedsimError, in_words
from fedsim.core.imports import imported
from fedsim.core.inputs import Tokens
from fedsim.core.types import Observation, Task, Weights

REMEDY = "Remedy: the class that the clients train; model.NAME=VALUE gives its arguments."


def user_model(task: Task, *, import_path: str, **arguments: Any) -> nn.Module:
    """Your own model: `import_path` is module.Class, importable from here or from the current folder.

    Its constructor gets the arguments and, where it asks for them by name and has no default, what the task
    says: task, num_classes, input_shape, in_channels. One that takes the task takes pixels in [0, 1].
    """
    make = imported(import_path, "model")
    asked = _required(make)
    offered = {
        "task": task,
        "num_classes": task.num_classes,
        "input_shape": task.input_shape,
        "in_channels": task.input_shape[0],
    }
    given = {name: value for name, value in offered.items() if name in asked and name not in arguments}
    try:
        model = make(**given, **arguments)
    except Exception as error:
        raise FedsimError(
            f"model={import_path}: cannot be made ({in_words(error)}). "
            "Remedy: model.NAME=VALUE for each argument."
        ) from error
    if not isinstance(model, nn.Module):
        raise FedsimError(f"model={import_path}: expected an nn.Module, got {type(model).__name__}. {REMEDY}")
    plain = "task" in given or isinstance(task.inputs, Tokens)  # tokens are not normalised
    model = (model if plain else normalising(model, task)).eval()
    try:
        with torch.no_grad():
            own = next(model.parameters())
            shape = tuple(model(torch.zeros(1, *task.input_shape).to(own)).shape)
    except Exception as error:
        raise FedsimError(
            f"model={import_path} does not take images of shape {task.input_shape} ({in_words(error)}). "
            "Remedy: data of the shape that it takes; in a tapped replay, task.input_shape=[C,H,W]."
        ) from error
    if shape[:2] != (1, task.num_classes):  # of next tokens: at every place
        raise FedsimError(
            f"model={import_path}: expected logits {(1, task.num_classes)} for one image, got {shape}. "
            "Remedy: task.num_classes=N in a tapped replay, or a model that returns so many logits."
        )
    return model


def _required(make: Any) -> set[str]:
    """Return what a constructor must be given."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # one of C
        return set()
    return {parameter.name for parameter in parameters if parameter.default is parameter.empty}


def made(model: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    """Return a model that was given, or what a class or a function without arguments makes."""
    if isinstance(model, nn.Module):
        return model
    remedy = "Remedy: model=Net, or model=lambda: Net(width=64)."
    if not callable(model):
        raise FedsimError(
            f"model: expected an nn.Module or what makes one, got {type(model).__name__}. {remedy}"
        )
    name = getattr(model, "__qualname__", type(model).__name__)
    try:
        found: object = model()
    except Exception as error:
        raise FedsimError(
            f"model: expected {name} to make a model without arguments, got {in_words(error)}. {remedy}"
        ) from error
    if not isinstance(found, nn.Module):
        raise FedsimError(
            f"model: expected {name} to make an nn.Module, got {type(found).__name__}. {remedy}"
        )
    return found


def import_path(*candidates: object) -> str | None:
    """Return where the first of some classes or functions that can be imported is imported from."""
    for candidate in candidates:
        module, name = (getattr(candidate, key, None) for key in ("__module__", "__qualname__"))
        there = isinstance(name, str) and "." not in name and module != "__main__"
        if there and getattr(sys.modules.get(str(module)), str(name), None) is candidate:
            return f"{module}.{name}"
    return None


def normalising(model: nn.Module, task: Task) -> nn.Module:
    """Let a model take pixels in [0, 1]: they enter it normalised, as its own data did. Names stay."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (task.mean, task.std))

    def normalise(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return ((inputs[0] - mean.to(inputs[0])) / std.to(inputs[0]), *inputs[1:])

    model.register_forward_pre_hook(normalise)
    return model.cpu().eval()


def fitted(model: nn.Module, observation: Observation) -> Observation:
    """Return an observation of the model's parameters alone; load the buffers that came with them.

    Buffers that were not sent stay as the class makes them.
    """
    parameters = dict(model.named_parameters())
    if observation.sent.keys() != parameters.keys():
        observation = _named(model, observation)
        buffers = dict(model.named_buffers())
        with torch.no_grad():
            for name in observation.sent.keys() & buffers.keys():
                if observation.sent[name].shape == buffers[name].shape:
                    buffers[name].copy_(observation.sent[name])
    for name, parameter in parameters.items():
        if parameter.shape != observation.sent[name].shape:
            raise FedsimError(
                f"the model does not fit the weights: parameter {name!r} has shape {tuple(parameter.shape)}, "
                f"sent was {tuple(observation.sent[name].shape)}. {REMEDY}"
            )
    if observation.sent.keys() == parameters.keys():
        return observation
    return dataclasses.replace(
        observation,
        sent={name: observation.sent[name] for name in parameters},
        received={name: observation.received[name] for name in parameters},
    )


def _named(model: nn.Module, observation: Observation) -> Observation:
    """Name tensors that came as a plain list, and refuse those of another model."""
    state, parameters = list(model.state_dict()), [name for name, _ in model.named_parameters()]
    sent = observation.sent
    if sent.keys() == {str(place) for place in range(len(sent))}:  # Flower's names for a list of arrays
        names = state if len(state) == len(sent) else parameters
        if len(names) == len(sent):
            observation = dataclasses.replace(
                observation, sent=_renamed(sent, names), received=_renamed(observation.received, names)
            )
    if missing := [name for name in parameters if name not in observation.sent]:
        raise FedsimError(
            f"the model does not fit the weights: its parameter {missing[0]!r} was not sent, "
            f"got {', '.join(sorted(sent)[:6])}{' ...' if len(sent) > 6 else ''}. {REMEDY}"
        )
    if unknown := sorted(observation.sent.keys() - set(state)):
        raise FedsimError(
            f"the model does not fit the weights: tensor {unknown[0]!r} was sent, and it has none. {REMEDY}"
        )
    return observation


def _renamed(weights: Weights, names: list[str]) -> Weights:
    return {name: weights[str(place)] for place, name in enumerate(names)}
