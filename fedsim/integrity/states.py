"""Whatever has a state_dict, as named tensors and text: what a checkpoint of any torch loop is made of.

The text is JSON; a mapping is {"d": [[key, value], ...]}, a tuple {"t": [...]}, a tensor {"x": its name}, a
number that JSON has no word for {"f": "inf"}.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.types import Weights

DEEPEST = 50  # levels of a state: nobody's text may exhaust the stack


class Stateful(Protocol):
    """A model, an optimizer, a schedule: what a loop changes, and can be put back to."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: Any) -> Any:
        """Go back to a state."""


def state_of(parts: Sequence[Stateful]) -> tuple[dict[str, Tensor], str]:
    """Return copies of all tensors in the state of a loop, by name, and the rest of it as text."""
    tensors = dict[str, Tensor]()
    found = [_apart(part.state_dict(), str(number), tensors) for number, part in enumerate(parts)]
    return tensors, json.dumps(found, separators=(",", ":"), allow_nan=False)


def restore(parts: Sequence[Stateful], tensors: Weights, text: str) -> None:
    """Put a loop back into a state; a text or tensors that are none raise whatever they lead to."""
    states = json.loads(text)
    if not isinstance(states, list) or len(states) != len(parts):
        raise ValueError(f"expected the state of {len(parts)} parts")
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(_together(state, tensors))


def tensors_in(value: Any) -> dict[str, Tensor]:
    """Return the tensors of a batch, however it holds them, by name."""
    tensors = dict[str, Tensor]()
    _apart(value, "", tensors)
    return tensors


def _apart(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value with names in place of its tensors, which are gathered."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().clone()
        return {"x": name}
    if isinstance(value, Mapping):
        return {"d": [[_key(key), _apart(one, f"{name}.{key}", tensors)] for key, one in value.items()]}
    if isinstance(value, (list, tuple)):
        parts = [_apart(one, f"{name}.{number}", tensors) for number, one in enumerate(value)]
        return {"t": parts} if isinstance(value, tuple) else parts
    if isinstance(value, float) and not math.isfinite(value):
        return {"f": str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if hasattr(value, "item"):  # a number of numpy's
        return _apart(value.item(), name, tensors)
    raise FedsimError(
        f"a state holds {type(value).__name__} at {name}: expected tensors, numbers and texts. "
        "Remedy: leave it out of state_dict(), or hand over a part that has one without it."
    )


def _key(key: Any) -> int | str:
    if type(key) not in (int, str):
        raise FedsimError(f"a state has the key {key!r}: expected texts and whole numbers")
    return key  # type: ignore[no-any-return]


def _together(value: Any, tensors: Weights, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise ValueError("a state that is too deep")
    if isinstance(value, list):
        return [_together(one, tensors, depth + 1) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "x":
        return tensors[content].clone()
    if kind == "f":
        return float(content)
    if kind == "t":
        return tuple(_together(one, tensors, depth + 1) for one in content)
    if kind == "d":
        return {_key(key): _together(one, tensors, depth + 1) for key, one in content}
    raise ValueError(f"{kind!r} is no part of a state")


def padded(tensors: Weights, like: Weights) -> dict[str, Tensor]:
    """Return tensors by the names of others, with zeros for those that are not there yet.

    An optimizer makes its own with its first step; the text says which there are.
    """
    return {name: tensors[name] if name in tensors else torch.zeros_like(one) for name, one in like.items()}
