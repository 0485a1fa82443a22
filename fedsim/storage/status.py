"""How a run stands: one word in summary.json, and the reason beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """A run begins as running; complete is the last thing that is written of it."""

    RUNNING = "running"
    COMPLETE = "complete"
    GAVE_UP = "gave up"  # the attack said of every observation why it cannot work on it
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class Standing:
    """A status, with the reason why a run failed or its attack gave up."""

    status: Status | None  # None: the run never began
    reason: str = ""

    @property
    def has_result(self) -> bool:
        """Whether the run ended as it should, be it with an attack that gave up."""
        return self.status in (Status.COMPLETE, Status.GAVE_UP)

    @property
    def fields(self) -> dict[str, str]:
        """What a summary says of it."""
        return {"status": str(self.status), "reason": self.reason}

    def __str__(self) -> str:
        if self.status is None:
            return "not finished"
        return f"{self.status}: {self.reason}" if self.reason else str(self.status)


def standing_of(summary: Mapping[str, Any]) -> Standing:
    """Read how a run stands from its summary; a word that nobody writes is a failure."""
    word, reason = str(summary.get("status", "")), str(summary.get("reason", ""))
    if not word:
        return Standing(None)
    return Standing(Status(word), reason) if word in set(Status) else Standing(Status.FAILED, word)
