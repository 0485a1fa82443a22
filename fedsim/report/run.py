"""report.html of one run, made from its folder alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import yaml
from matplotlib.figure import Figure

from fedsim.core.errors import FedsimError, shortened
from fedsim.core.types import ALL, Reconstruction, Truth
from fedsim.metrics.image_matching import match_to_truth, peak_signal_to_noise
from fedsim.metrics.lpips import perceptual_distance
from fedsim.report import audit
from fedsim.report.figures import (
    COUNTED,
    accuracy_figure,
    confusion_figure,
    count_table,
    label_figure,
    picture_figure,
    scores_figure,
    trace_figure,
)
from fedsim.report.page import write_page
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.scores import ScoreRow, metric_lines
from fedsim.storage.status import standing_of

SHOWN = 6  # clients whose pictures and labels are drawn
PICTURES = 10  # images of each
TOLD = {
    "num_examples": "its number of examples",
    "learning_rate": "its learning rate",
    "local_steps": "its number of local steps",
    "loss": "its loss",
    "class_counts": "its class counts",
}
LISTED = 400  # scores, and faults, in the page; scores.csv has all


def write_page_of(folder: RunFolder, summary: Mapping[str, Any]) -> Path:
    """Write report.html and its figures into the folder of a run, a replay or a wiretap."""
    config: dict[str, Any] = yaml.safe_load(folder.config_text())
    if "choices" not in config:
        raise FedsimError(f"{folder.path} holds a run that could not be built: {standing_of(summary)}")
    rows = folder.scores()
    scored = [row for row in rows if row.value is not None]
    figures: dict[str, Figure] = {}
    if history := folder.history():
        figures["accuracy"] = accuracy_figure(history)
    if len({row.round for row in scored}) > 1 and (means := _means_by_round(scored)):
        figures["scores"] = scores_figure(means)
    verdicts, malicious = folder.verdicts(), folder.malicious()
    if verdicts:
        figures["verdicts"] = audit.verdicts_figure(verdicts, malicious)
        if distances := audit.distances_figure(verdicts, malicious):
            figures["distances"] = distances
    attacked = folder.guessed()
    drawn, picture_titles = guess_figures(folder, attacked)
    figures |= drawn
    faults = [row for row in rows if row.value is None]
    return write_page(
        folder.path / "report.html",
        "run.html",
        figures,
        title=summary.get("name", config["name"]),
        summary=summary,
        standing=standing_of(summary),
        blindly=bool(attacked) and not folder.has_truth(),
        threat=threat_model(config),
        lines=metric_lines(scored),
        rates=audit.rates(verdicts, malicious),
        reasons=audit.reasons(verdicts, malicious),
        verdicts=len(verdicts),
        recomputed=sum(verdict.recomputed for verdict in verdicts),
        claimed=sum(verdict.steps for verdict in verdicts),
        proof_bytes=sum(verdict.bytes for verdict in verdicts),
        accuracy=history[-1].accuracy if history else None,
        picture_titles=picture_titles,
        label_figures=[name for name in figures if name.startswith("labels")],
        faults=[replace(row, error=shortened(row.error)) for row in faults[:LISTED]],
        unlisted_faults=max(0, len(faults) - LISTED),
        scores=scored[:LISTED],
        unlisted=max(0, len(scored) - LISTED),
        config=folder.config_text(),
    )


def place_name(round: int, client: int) -> str:
    """Name an observation in words."""
    return f"round {round}, " + ("all clients" if client == ALL else f"client {client}")


def threat_model(config: dict[str, Any]) -> str:
    """Say in one sentence who attacks whom, with what knowledge, behind which defence."""
    if "wiretap" in config:
        return _tapped_model(config)
    rules, choices = config["federation"], config["choices"]
    clients = f"{rules['clients']:,} client{'' if rules['clients'] == 1 else 's'}"
    if (share := rules.get("participation", 1.0)) < 1:
        clients += f" ({100 * share:g} % of them a round)"
    rounds = f"{rules['rounds']} round{'' if rules['rounds'] == 1 else 's'}"
    if rules["mode"] == "fedsgd":
        reply = f"the gradient of a batch of {rules['batch_size']}"
    else:
        reply = f"its update after {rules['local_steps']} local steps on batches of {rules['batch_size']}"
    untold = ("learning_rate", "local_steps") if rules["mode"] == "fedsgd" else ()  # a gradient has neither
    told = ", ".join(TOLD[name] for name in rules["disclose"] if name not in untold) or "nothing else"
    defenses = ", then ".join(config["defense"]) if config["defense"] else "no defence"
    cheating = ", ".join(
        f"{name} ({100 * node['share']:g} % of them)" for name, node in (config.get("client") or {}).items()
    )
    norm = ", BatchNorm on the private batch's statistics" if rules.get("batch_norm") == "train" else ""
    if "secure_aggregation" in (config["defense"] or {}):
        defenses += ", so that the server sees only the exact sum over a round's clients"
    known = "which it knows" if config.get("threat", {}).get("knows_defense") else "which it was not told of"
    defenses += f" ({known})" if config["defense"] else ""
    audited = choices.get("audit", "none") != "none"
    if cheating or audited:
        start = (
            f"A server trains {choices['model']} on {choices['data']} with {clients} for {rounds}; each is "
            f"to answer with {reply}. Cheats among the clients: {cheating or 'none'}. "
        )
        if audited:
            rule = config["audit"]
            start += (
                "Every update comes with a sealed proof of learning; the server does the "
                f"{rule['top']} largest and {rule['random']} random intervals of {rule['every']} steps "
                f"again, and gives a rejected update the weight {rule['rejected_weight']:g}."
            )
        else:
            start += "Nobody looks."
        return (
            start if choices["attack"] == "none" else f"{start} The server attacks with {choices['attack']}."
        )
    return (
        f"A malicious server trains {choices['model']} on {choices['data']} with {clients} for {rounds}; "
        f"each client answers with {reply}{norm}, behind {defenses}, and discloses {told}; "
        f"the server then attacks what it saw with {choices['attack']}."
    )


def _tapped_model(config: dict[str, Any]) -> str:
    """Say in some sentences what was tapped, and what the attack knew."""
    tapped, choices = config["wiretap"], config["choices"]
    told = {
        "weights": "new weights, of which the update is kept",
        "update": "updates",
        "gradient": "gradients",
    }
    words = (
        f"A Flower app under {tapped['strategy']} was tapped; its clients answer with "
        f"{told[tapped['replies']]}. The model is {choices['model']}; buffers that were not sent are as its "
        "class makes them."
    )
    if beside := tapped.get("disclosed"):
        words += " The attacker was told " + ", ".join(f"{k} = {v}" for k, v in beside.items()) + "."
    return words if choices["attack"] == "none" else f"{words} It is attacked with {choices['attack']}."


def _means_by_round(scored: list[ScoreRow]) -> dict[str, dict[int, float]]:
    by_metric: dict[str, dict[int, list[float]]] = {}
    for row in scored:
        if row.value is not None and row.metric != "bytes":
            by_metric.setdefault(row.metric, {}).setdefault(row.round, []).append(row.value)
    return {name: {r: fmean(values) for r, values in rounds.items()} for name, rounds in by_metric.items()}


def guess_figures(
    folder: RunFolder, attacked: list[tuple[int, int]]
) -> tuple[dict[str, Figure], dict[str, str]]:
    """Draw some clients' images and labels, true and guessed, and the counts of all; titles of the images.

    There may be 100,000 of them: each file is read once, and what is kept of it does not grow.
    """
    figures: dict[str, Figure] = {}
    titles: dict[str, str] = {}
    traces: dict[str, Sequence[float]] = {}
    counts, shown = torch.zeros(COUNTED, COUNTED, dtype=torch.int64), set(_spread(attacked, SHOWN))
    for round, client in attacked:
        guess, drawn = folder.guess(round, client), (round, client) in shown
        if guess is None or not (drawn or guess.class_counts is not None):
            continue
        truth, place = folder.truth(round, client), f"{round}_{client}"
        if truth is not None and guess.class_counts is not None:
            counts += count_table(
                truth.labels.bincount(minlength=len(guess.class_counts)), guess.class_counts
            )
        if drawn and guess.images is not None:
            if len(guess.trace) > 1:
                traces[place_name(round, client)] = guess.trace
            if pictures := _pictures(guess, truth, place_name(round, client)):
                figures[f"pictures_{place}"], titles[f"pictures_{place}"] = pictures
        if drawn and (labels := _labels(guess, truth, place_name(round, client))):
            figures[f"labels_{place}"] = labels
    if traces:
        figures["trace"] = trace_figure(traces)
    if counts.any():
        figures["confusion"] = confusion_figure(counts)
    return figures, titles


def _spread(attacked: list[tuple[int, int]], number: int) -> list[tuple[int, int]]:
    """Choose some of the attacked (round, client), spread over the rounds."""
    return attacked[:: max(1, len(attacked) // number)][:number]


def _pictures(guess: Reconstruction, truth: Truth | None, title: str) -> tuple[Figure, str] | None:
    """Draw true images beside guesses, or guesses alone; with a title."""
    assert guess.images is not None
    if truth is None:
        shown = guess.images[:PICTURES].detach()
        return picture_figure(None, shown, [""] * len(shown)), title + ", guesses"
    if truth.images.shape[1:] != guess.images.shape[1:]:
        return None
    matched, true = match_to_truth(guess.images, truth.images)[:PICTURES], truth.images[:PICTURES]
    captions = [f"{psnr:.1f} dB" for psnr in peak_signal_to_noise(matched, true).tolist()]
    if true.shape[1] in (1, 3):  # what LPIPS takes
        distances = perceptual_distance(matched, true).tolist()
        captions = [f"{words}\nLPIPS {d:.3f}" for words, d in zip(captions, distances, strict=True)]
    if len(truth.images) > PICTURES:
        title += f", {PICTURES} of {len(truth.images)} images"
    if guess.residual is not None:
        title += f"; the attack's own residual: {guess.residual:.2g}"
    return picture_figure(true, matched, captions), title


def _labels(guess: Reconstruction, truth: Truth | None, title: str) -> Figure | None:
    """Draw restored labels, against true ones where they are known."""
    found = guess.class_presence if guess.class_counts is None else guess.class_counts
    if found is None:
        return None
    true = None if truth is None else truth.labels.bincount(minlength=len(found))
    return label_figure(true, found.long(), title, guess.class_counts is None)
