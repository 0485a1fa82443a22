"""Settings, checked where they arrive: every function returns a right value, or says what was expected."""

import math
import sys
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import numpy as np

from fedsim.core.errors import FedsimError

T = TypeVar("T")


def refusal(key: str, expected: str, value: object) -> FedsimError:
    """Return the error that says what a setting should be, and what it is."""
    return FedsimError(f"{key}: expected {expected}, got {value!r}")


def whole(key: str, value: object, least: int | None = 1, most: int | None = None) -> int:
    """Return a whole number; None: no end on that side. True and 2.0 are none."""
    low, high = -math.inf if least is None else least, math.inf if most is None else most
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and low <= int(value) <= high:
        return int(value)  # numpy's, too
    raise refusal(key, _range("whole number", None, least, None, most), value)


def number(
    key: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    infinite: bool = False,
) -> float:
    """Return a number in a range; infinite: without end is a right value too. NaN, True and "1" are none."""
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        found = value if isinstance(value, int) else float(value)  # numpy's, too
        finite = abs(found) <= sys.float_info.max  # not math.isfinite, which a very long integer overflows
        if (
            (finite or (infinite and found == math.inf))
            and (above is None or found > above)
            and (least is None or found >= least)
            and (below is None or found < below)
            and (most is None or found <= most)
        ):
            return float(found)
    raise refusal(key, _range("number", above, least, below, most), value)


def seconds(key: str, value: object) -> float:
    """Return a time budget; none is endless."""
    return math.inf if value is None else number(key, value, above=0)


def switch(key: str, value: object) -> bool:
    """Return true or false: 0, 1 and "off" are neither."""
    if not isinstance(value, bool):
        raise refusal(key, "true or false", value)
    return value


def one_of(key: str, value: T, allowed: Collection[T]) -> T:
    """Return a choice, of the type of what there is to choose from: 3.0 is not 3, nor is True 1."""
    if type(value) not in map(type, allowed) or value not in allowed:
        names = [str(choice) for choice in allowed]
        raise refusal(key, " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}", value)
    return value


def word(key: str, value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise refusal(key, "a word", value)
    return value


def listed(
    key: str,
    value: object,
    expected: str,
    check: Callable[[str, Any], T],
    least: int = 1,
    most: float = math.inf,
) -> list[T]:
    """Return a list of so many items, each of which passes a check; an error shows the whole list."""
    if isinstance(value, list | tuple) and least <= len(value) <= most:
        try:
            return [check(key, item) for item in value]
        except FedsimError:
            pass
    raise refusal(key, expected, value)


def optional(check: Callable[..., T], key: str, value: object, *rules: Any, **limits: Any) -> T | None:
    """Return None, or what passes a check."""
    if value is None:
        return None
    try:
        return check(key, value, *rules, **limits)
    except FedsimError as error:
        start = f"{key}: expected "
        raise FedsimError(f"{start}null or {str(error).removeprefix(start)}") from None


def _range(
    what: str, above: float | None, least: float | None, below: float | None, most: float | None
) -> str:
    low, high = least if above is None else above, most if below is None else below
    if low is not None and high is not None:
        what = "share" if what == "number" and (low, high) == (0, 1) else what
        return f"a {what} in {'[' if above is None else '('}{low}, {high}{']' if below is None else ')'}"
    if above is not None:
        return f"a positive {what}" if above == 0 else f"a {what} above {above}"
    if below is not None:
        return f"a {what} below {below}"
    if least is not None:
        return f"a {what} of at least {least}"
    return f"a {what}" if most is None else f"a {what} of at most {most}"
