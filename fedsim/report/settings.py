"""Settings of a run as dotted names, what was chosen first. Read without torch."""

from collections.abc import Mapping, Sequence
from typing import Any

ABOUT = ("choices", "format", "kind", "source")  # said elsewhere


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as dotted names, what was chosen first: data, model, attack, defenses."""
    chosen = dict(config.get("choices") or {})  # a run that was never built has none
    chosen.pop("asked", None)  # says the same as the settings
    for group in ("defense", "client"):
        chosen[group] = " + ".join(config.get(group) or {}) or "none"
    flat = _flat({key: value for key, value in config.items() if key not in ABOUT})
    # A part's seed that is the run's says nothing more: runs that differ by it differ by their seed alone.
    return chosen | {k: v for k, v in flat.items() if not (k.endswith(".seed") and v == config.get("seed"))}


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested settings into dotted names."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def differs(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether a setting varies among the runs that have it; targets and names repeat the choices."""
    if key == "name" or key.endswith("_target_"):
        return False
    return len({str(setting[key]) for setting in settings if key in setting}) > 1
