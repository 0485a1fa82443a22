"""report.html of one run, made from its folder alone."""

from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import yaml
from matplotlib.figure import Figure
from torch import Tensor

from fedsim.report.figures import accuracy_figure, confusion_figure, label_figure, scores_figure
from fedsim.report.page import write_page
from fedsim.runfolder import RunFolder, ScoreRow, metric_lines

SHOWN = 6  # clients whose labels are drawn
TOLD = {
    "num_examples": "its number of examples",
    "learning_rate": "its learning rate",
    "local_steps": "its number of local steps",
    "loss": "its loss",
    "class_counts": "its class counts",
}
LISTED = 400  # scores in the long table; scores.csv has all


def write_report(folder: RunFolder) -> Path:
    """Write report.html and its figures into a run folder."""
    config: dict[str, Any] = yaml.safe_load(folder.config_text())
    summary, rows = folder.summary(), folder.scores()
    scored = [row for row in rows if row.value is not None]
    figures: dict[str, Figure] = {}
    if history := folder.history():
        figures["accuracy"] = accuracy_figure(history)
    if len({row.round for row in scored}) > 1:
        figures["scores"] = scores_figure(_means_by_round(scored))
    figures |= _label_figures(folder)
    return write_page(
        folder.path / "report.html",
        "run.html",
        figures,
        title=summary.get("name", config["name"]),
        summary=summary,
        threat=threat_model(config),
        lines=metric_lines(scored),
        accuracy=history[-1].accuracy if history else None,
        label_figures=[name for name in figures if name.startswith("labels")],
        faults=[row for row in rows if row.value is None],
        scores=scored[:LISTED],
        unlisted=max(0, len(scored) - LISTED),
        config=folder.config_text(),
    )


def threat_model(config: dict[str, Any]) -> str:
    """Say in one sentence who attacks whom, with what knowledge, behind which defence."""
    rules, choices = config["federation"], config["choices"]
    clients = f"{rules['clients']} client{'' if rules['clients'] == 1 else 's'}"
    rounds = f"{rules['rounds']} round{'' if rules['rounds'] == 1 else 's'}"
    if rules["mode"] == "fedsgd":
        reply = f"the gradient of a batch of {rules['batch_size']}"
    else:
        reply = f"its update after {rules['local_steps']} local steps on batches of {rules['batch_size']}"
    untold = ("learning_rate", "local_steps") if rules["mode"] == "fedsgd" else ()  # a gradient has neither
    told = ", ".join(TOLD[name] for name in rules["disclose"] if name not in untold) or "nothing else"
    defenses = ", then ".join(config["defense"]) if config["defense"] else "no defence"
    return (
        f"A malicious server trains {choices['model']} on {choices['data']} with {clients} for {rounds}; "
        f"each client answers with {reply}, behind {defenses}, and discloses {told}; "
        f"the server then attacks what it saw with {choices['attack']}."
    )


def _means_by_round(scored: list[ScoreRow]) -> dict[str, dict[int, float]]:
    by_metric: dict[str, dict[int, list[float]]] = {}
    for row in scored:
        if row.value is not None:
            by_metric.setdefault(row.metric, {}).setdefault(row.round, []).append(row.value)
    return {name: {r: fmean(values) for r, values in rounds.items()} for name, rounds in by_metric.items()}


def _label_figures(folder: RunFolder) -> dict[str, Figure]:
    """Draw restored against true labels: of some attacked clients, and the counts of all together."""
    figures: dict[str, Figure] = {}
    true_counts, guessed_counts = list[Tensor](), list[Tensor]()
    attacked = folder.guessed()
    shown = set(attacked[:: max(1, len(attacked) // SHOWN)][:SHOWN])  # spread over the rounds
    for round, client in attacked:
        guess, truth = folder.guess(round, client), folder.truth(round, client)
        if guess is None or truth is None:
            continue
        found = guess.class_presence if guess.class_counts is None else guess.class_counts
        if found is None:
            continue
        true = truth.labels.bincount(minlength=len(found))
        if guess.class_counts is not None:
            true_counts.append(true)
            guessed_counts.append(guess.class_counts)
        if (round, client) in shown:
            title, only_presence = f"round {round}, client {client}", guess.class_counts is None
            figures[f"labels_{round}_{client}"] = label_figure(true, found.long(), title, only_presence)
    if true_counts:
        figures["confusion"] = confusion_figure(torch.cat(true_counts), torch.cat(guessed_counts))
    return figures
