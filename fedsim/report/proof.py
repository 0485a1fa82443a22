"""The page of a proof of learning: what was trained, and what a verifier must be told."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedsim.report.page import write_page
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Status, standing_of

FACTS = {
    "steps": "steps",
    "batch_size": "batch size",
    "learning_rate": "learning rate",
    "every": "steps between checkpoints",
    "precision": "precision of the checkpoints",
    "seed": "seed",
}


def write_page_of(folder: RunFolder, summary: Mapping[str, Any]) -> Path:
    """Write report.html into the folder of a proof."""
    standing, choices = standing_of(summary), yaml.safe_load(folder.config_text()).get("choices", {})
    chosen = [(key, choices[key]) for key in ("model", "data") if key in choices]
    return write_page(
        folder.path / "report.html",
        "proof.html",
        {},
        title="Proof of learning",
        standing="" if standing.status is Status.COMPLETE else str(standing),
        facts=chosen + [(words, summary[key]) for key, words in FACTS.items() if key in summary],
        bytes=summary.get("bytes", 0),
        own_keys=summary.get("own_keys", False),
    )
