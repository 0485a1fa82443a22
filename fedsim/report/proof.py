"""The page of a proof of learning: what was trained, and what a verifier must be told."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from fedsim.report.answers import Answer
from fedsim.report.answers_integrity import proof_answer
from fedsim.report.origin import origin_of, setting_of
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


def answer_of(folder: RunFolder, summary: Mapping[str, Any]) -> Answer:
    """Say what is recorded, and whether anybody checked it."""
    return proof_answer(
        setting=setting_of([yaml.safe_load(folder.config_text())]),
        steps=summary.get("steps", 0),
        size=summary.get("bytes", 0),
        standing=standing_of(summary),
    )


def drawings_of(folder: RunFolder, summary: Mapping[str, Any]) -> dict[str, Figure]:
    """Draw nothing: the page is words and tables."""
    return {}


def write_page_of(folder: RunFolder, summary: Mapping[str, Any]) -> Path:
    """Write report.html into the folder of a proof."""
    standing, config = standing_of(summary), yaml.safe_load(folder.config_text())
    choices = config.get("choices", {})
    chosen = [(key, choices[key]) for key in ("model", "data") if key in choices]
    origin = origin_of(folder, summary, config)
    return write_page(
        folder.path / "report.html",
        "proof.html",
        drawings_of(folder, summary),
        title=f"Proof of learning: {setting_of([config])}",
        answer=answer_of(folder, summary),
        standing="" if standing.status is Status.COMPLETE else str(standing),
        facts=chosen + [(words, summary[key]) for key, words in FACTS.items() if key in summary],
        bytes=summary.get("bytes", 0),
        origin=origin,
        check=origin.command.replace("fedsim prove", "fedsim verify training.proof", 1) or "fedsim verify",
        own_keys=summary.get("own_keys", False),
    )
