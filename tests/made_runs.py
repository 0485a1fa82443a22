"""Run folders as commands leave them, made up in milliseconds, with words of our choice."""

from pathlib import Path
from typing import Any

import torch
import yaml

from fedsim.core.types import Truth
from fedsim.storage.comparison import Cell, write_cells
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.scores import ScoreRow


def made_run(
    path: Path,
    *,
    name: str = "made",
    attack: str = "ilrg",
    defense: str = "",
    seed: int = 0,
    lnacc: float | None = 0.75,
    status: str = "complete",
    metric: str = "lnacc",
    examples: int = 5,
    config_attack: dict[str, Any] | None = None,
    **settings: Any,
) -> RunFolder:
    """A run of two clients, of whose batches less was seen than the config asked for."""
    folder = RunFolder(path)
    config = {
        "name": name,
        "seed": seed,
        "choices": {"attack": attack, "model": "fcn3", "data": "mnist_small"},
        "federation": {"batch_size": 400, "clients": 2},
        "defense": {defense: {"_target_": "x"}} if defense else {},
        **({"attack": config_attack} if config_attack else {}),
        **settings,
    }
    folder.begin("run", yaml.safe_dump(config, sort_keys=False))
    rows = [
        ScoreRow(round=1, client=client, attack=attack, metric=metric, value=lnacc, baseline=0.25)
        for client in range(2)
    ]
    folder.write_scores(rows)
    for client in range(2):
        labels = torch.zeros(examples, dtype=torch.int64)
        folder.keep_truth(Truth(round=1, client=client, images=torch.zeros(examples, 1, 2, 2), labels=labels))
    means = {metric: lnacc, "accuracy": 0.5}
    folder.write_summary(
        {"name": name, "status": status, "reason": "", "metrics": means, "baseline": {metric: 0.25}}
    )
    return folder


def made_sweep(path: Path, **settings: Any) -> RunFolder:
    """A sweep over three seeds."""
    folder = RunFolder(path)
    folder.begin("sweep", "name: sweep\n")
    folder.write_summary({"name": path.name, "status": "complete", "reason": "", "metrics": {}})
    for seed in range(3):
        made_run(path / f"{seed}_made", seed=seed, lnacc=0.5 + 0.125 * seed, **settings)
    return folder


def made_comparison(path: Path, label: str = "noise (sigma 0.1)") -> RunFolder:
    """A comparison of one attack with two defenses over two seeds."""
    folder = RunFolder(path)
    folder.begin("comparison", "name: comparison\ncommon: []\n")
    folder.write_summary({"name": path.name, "status": "complete", "reason": "", "metrics": {}})
    cells = [Cell.of("ilrg", defense, seed) for defense in ("none", label) for seed in range(2)]
    write_cells(folder.storage, cells)
    for cell in cells:
        defense = "" if cell.defense == "none" else "noise"
        made_run(path / cell.folder, defense=defense, seed=cell.seed, lnacc=0.5 + 0.25 * cell.seed)
        made_run(path / cell.training, attack="none", defense=defense, seed=cell.seed)
    return folder
