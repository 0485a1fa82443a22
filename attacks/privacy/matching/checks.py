"""Settings of the parts, checked when they are made."""

import math

from fedsim.core.errors import FedsimError


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return a choice, or say what there is to choose from."""
    if value not in allowed:
        raise FedsimError(f"attack.{name}: expected {' or '.join(allowed)}, got {value!r}")
    return value


def whole(name: str, value: int, least: int = 1) -> int:
    """Return a whole number, or say what was expected."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise FedsimError(f"attack.{name}: expected a whole number of at least {least}, got {value!r}")
    return value


def number(name: str, value: float, *, positive: bool = True) -> float:
    """Return a finite number, positive or at least not negative, or say what was expected."""
    right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not right or value < 0 or (positive and value == 0):
        expected = "a positive number" if positive else "a number of at least 0"
        raise FedsimError(f"attack.{name}: expected {expected}, got {value!r}")
    return float(value)


def seconds(name: str, value: float | None) -> float:
    """Return a time budget; none is endless."""
    return math.inf if value is None else number(name, value)


def finite(name: str, value: float) -> float:
    """Return a number of either sign, or say what was expected."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise FedsimError(f"attack.{name}: expected a number, got {value!r}")
    return float(value)
