"""What an experiment is expected to give: figures with their ranges, as data in its yaml. Light: no numpy."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsim.core.errors import FedsimError, suggestion

TAKES = ("each", "mean", "median", "lowest", "highest", "sum")
KEYS = ("where", "figure", "take", "range")
EXAMPLE = "{where: {attack: ilrg}, figure: lnacc, range: [0.95, 1.0]}"


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A figure of an experiment's results, and the closed range that it lies in."""

    figure: str
    least: float
    most: float
    where: Mapping[str, object]  # settings of the results that it is about; a * stands for any text
    take: str = "each"  # of several results: each of them, or one number over all

    @property
    def about(self) -> str:
        """Which results it is about, in words."""
        return ", ".join(f"{key}={value}" for key, value in self.where.items())

    @property
    def name(self) -> str:
        """The figure, and what is taken of it."""
        return self.figure if self.take == "each" else f"{self.take} of {self.figure}"

    @property
    def range(self) -> str:
        """The range in words."""
        low, high = in_digits(self.least), in_digits(self.most)
        return low if low == high else f"{low} to {high}"

    def __str__(self) -> str:
        return f"{self.name} {self.range}" + (f" ({self.about})" if self.where else "")

    def is_about(self, settings: Mapping[str, object]) -> bool:
        """Say whether a result with these settings is one that it is about."""
        return all(key in settings and _agrees(settings[key], value) for key, value in self.where.items())


def read_expectations(listed: object, place: str) -> tuple[Expectation, ...]:
    """Read the list under `expected` of an experiment; place: whose it is, for errors."""
    if listed is None:
        return ()
    if not isinstance(listed, list):
        raise FedsimError(f"{place}: expected: expected a list such as [{EXAMPLE}], got {listed!r}")
    return tuple(_expectation(entry, f"{place}: expected[{n}]") for n, entry in enumerate(listed))


def read_minutes(value: object, place: str) -> float | None:
    """Read how long an experiment takes on two cores; None: nobody said."""
    if value is None:
        return None
    found = _number(value)
    if found is None or not 0 < found < math.inf:
        raise FedsimError(f"{place}: minutes: expected a positive number, got {value!r}")
    return found


def in_digits(value: float) -> str:
    """Return a figure in few digits, a whole number in all of them."""
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"


def _expectation(entry: Any, place: str) -> Expectation:
    if not isinstance(entry, dict) or not {"figure", "range"} <= entry.keys():
        raise FedsimError(f"{place}: expected figure and range, such as {EXAMPLE}, got {entry!r}")
    if unknown := [str(key) for key in entry if key not in KEYS]:
        raise FedsimError(f"{place}: no key {unknown[0]!r}.{suggestion(unknown[0], KEYS)}")
    where, take, listed = entry.get("where", {}), entry.get("take", "each"), entry["range"]
    if not isinstance(where, dict):
        raise FedsimError(f"{place}: where: expected settings such as {{attack: ilrg}}, got {where!r}")
    if take not in TAKES:
        raise FedsimError(f"{place}: take: expected one of {', '.join(TAKES)}, got {take!r}")
    ends = [_number(end) for end in listed] if isinstance(listed, list) else []
    least, most = ends if len(ends) == 2 else (None, None)
    if least is None or most is None or least > most:
        raise FedsimError(f"{place}: range: expected [least, most], got {listed!r}")
    named = {str(key): value for key, value in where.items()}
    return Expectation(figure=str(entry["figure"]), least=least, most=most, where=named, take=take)


def _number(value: object) -> float | None:
    """Return a number that is one, also 1e-8, which YAML 1.1 takes for a word."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(found) else found


def _agrees(got: object, wanted: object) -> bool:
    """Compare settings: numbers by value, words by letter, where * stands for any text."""
    left, right = _number(got), _number(wanted)
    if left is not None and right is not None:
        return left == right
    pattern = ".*".join(re.escape(part) for part in str(wanted).split("*"))
    return re.fullmatch(pattern, str(got), re.DOTALL) is not None
