"""report.html of one run, made from its folder alone."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from fedsim.core.errors import REFUSED, FedsimError, printable, shortened
from fedsim.core.types import ALL, RoundResult
from fedsim.metrics.facts import MetricFacts, facts, legend
from fedsim.report import audit
from fedsim.report.answers import Answer, Attacked, figures_of, run_answer
from fedsim.report.answers_integrity import audit_answer, unaudited_answer
from fedsim.report.figures import rounds_figure
from fedsim.report.guesses import Guesses, guesses_of
from fedsim.report.origin import defense_of, origin_of, setting_of
from fedsim.report.page import write_page
from fedsim.report.threat import threat_model
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.scores import MetricLine, ScoreRow, metric_lines
from fedsim.storage.status import Status, standing_of

LEARNT = 0.1  # of test accuracy between attacked rounds: what leaks is drawn over it, too
LISTED = 400  # scores, and faults, in the page; scores.csv has all


def answer_of(folder: RunFolder, summary: Mapping[str, Any]) -> Answer:
    """Say what was recovered of whom, or who was caught."""
    config, rows = _config(folder, summary), folder.scores()
    verdicts, malicious = folder.verdicts(), folder.malicious()
    attacked, history = folder.guessed(), folder.history()
    attack = str(config["choices"]["attack"])
    scored = [row for row in rows if row.value is not None]
    places = set(attacked) or {(row.round, row.client) for row in scored if facts(row.metric).leaks}
    privacy = run_answer(
        Attacked(
            attack=attack,
            setting=setting_of([config]),
            defense=defense_of(config),
            figures=figures_of(rows, summary.get("legend")),
            standing=standing_of(summary),
            observed=summary.get("observations", 0),
            guessed=len(places),
            clients=len({client for _, client in places if client != ALL}),
            summed=bool(places) and all(client == ALL for _, client in places),
            refused=sum(fault.reason.startswith(REFUSED) for fault in folder.faults()),
            faults=sum(row.value is None and not row.error.startswith(REFUSED) for row in rows),
            blindly=bool(attacked) and not folder.has_truth(),
            accuracy=history[-1].accuracy if history else None,
        )
    )
    if not verdicts and not malicious:
        return privacy
    clients = config.get("federation", {}).get("clients", len(malicious))
    integrity = audit_answer(verdicts, malicious) if verdicts else unaudited_answer(malicious, clients)
    if attack == "none" and standing_of(summary).status is Status.COMPLETE:  # nothing to add but its faults
        privacy = replace(privacy, sentences=privacy.sentences[1:])
    return replace(integrity, sentences=(*integrity.sentences, *privacy.sentences), leaks=privacy.leaks)


def drawings_of(folder: RunFolder, summary: Mapping[str, Any]) -> dict[str, Figure]:
    """Draw what the page shows."""
    return _figures(folder, summary, guesses_of(folder, folder.guessed()))


def _figures(folder: RunFolder, summary: Mapping[str, Any], guesses: Guesses) -> dict[str, Figure]:
    scored = [row for row in folder.scores() if row.value is not None]
    figures, verdicts = _curves(folder, scored, summary.get("legend")), folder.verdicts()
    if verdicts:
        figures["verdicts"] = audit.verdicts_figure(verdicts, folder.malicious())
        if distances := audit.distances_figure(verdicts, folder.malicious()):
            figures["distances"] = distances
    return figures | guesses.figures


def write_page_of(folder: RunFolder, summary: Mapping[str, Any]) -> Path:
    """Write report.html and its figures into the folder of a run, a replay or a wiretap."""
    config, rows = _config(folder, summary), folder.scores()
    scored = [row for row in rows if row.value is not None]
    lines, kept = metric_lines(scored), summary.get("legend")
    verdicts, malicious = folder.verdicts(), folder.malicious()
    attacked = folder.guessed()
    guesses = guesses_of(folder, attacked)
    faults = [row for row in rows if row.value is None]
    metrics = {printable(name): value for name, value in summary.get("metrics", {}).items()}  # as in tables
    shown = [line.name for line in lines]
    return write_page(
        folder.path / "report.html",
        "run.html",
        _figures(folder, summary, guesses),
        title=title_of(config),
        answer=answer_of(folder, summary),
        standing=standing_of(summary),
        blindly=bool(attacked) and not folder.has_truth(),
        threat=threat_model(config, guesses.sizes, str(summary.get("prior", ""))),
        attacked=config["choices"]["attack"] != "none",
        lines=[(line, facts(line.name, kept), _leaks(line, facts(line.name, kept))) for line in lines],
        others=[(facts(name), value) for name, value in metrics.items() if name not in shown],
        terms=list(legend(dict.fromkeys((*shown, *metrics)), kept).values()),
        rates=audit.rates(verdicts, malicious),
        reasons=audit.reasons(verdicts, malicious),
        verdicts=len(verdicts),
        recomputed=sum(verdict.recomputed for verdict in verdicts),
        claimed=sum(verdict.steps for verdict in verdicts),
        proof_bytes=sum(verdict.bytes for verdict in verdicts),
        titles=guesses.titles,
        sides=guesses.sides,
        faults=[replace(row, error=shortened(row.error)) for row in faults[:LISTED]],
        unlisted_faults=max(0, len(faults) - LISTED),
        scores=scored[:LISTED],
        unlisted=max(0, len(scored) - LISTED),
        config=folder.config_text(),
        origin=origin_of(folder, summary, config),
    )


def title_of(config: Mapping[str, Any]) -> str:
    """Name a run by its attack, model, data and defenses."""
    attack, defense = config["choices"]["attack"], defense_of(config) or "no defense"
    audit_name = config["choices"].get("audit") or "none"
    cheats = " and ".join(map(str, config.get("client") or {}))
    if cheats or audit_name != "none":
        start = f"{cheats or 'Honest clients'} against {audit_name if audit_name != 'none' else 'no audit'}: "
    else:
        start = "Training " if attack == "none" else f"{attack} against "
    return f"{start}{setting_of([config])}, {defense}"


def _config(folder: RunFolder, summary: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(folder.config_text())
    if "choices" not in config:
        raise FedsimError(f"{folder.path} holds a run that could not be built: {standing_of(summary)}")
    return config


def _leaks(line: MetricLine, metric: MetricFacts) -> bool:
    return metric.leaks and line.baseline is not None and metric.better(line.mean, line.baseline, line.chance)


def _curves(folder: RunFolder, scored: list[ScoreRow], kept: Mapping[str, Any] | None) -> dict[str, Figure]:
    """Draw training and scores over rounds, and scores over what the model had learnt by then."""
    figures: dict[str, Figure] = {}
    history = folder.history()
    if history:
        accuracy = {result.round: result.accuracy for result in history}
        figures["accuracy"] = rounds_figure("test accuracy", accuracy, bounded=True)
        figures["loss"] = rounds_figure("test loss", {result.round: result.loss for result in history})
    for name in dict.fromkeys(row.metric for row in scored):
        metric, by_round = facts(name, kept), dict[int, list[ScoreRow]]()
        for row in scored:
            if row.metric == name:
                by_round.setdefault(row.round, []).append(row)
        if not metric.leaks or len(by_round) < 2:
            continue
        lines = {r: line for r, own in sorted(by_round.items()) for line in metric_lines(own)}
        draw = functools.partial(
            rounds_figure,
            metric.with_unit,
            {r: line.mean for r, line in lines.items()},
            bounded=metric.bounded,
            blind={r: line.baseline for r, line in lines.items() if line.baseline is not None},
            leaks=[r for r, line in lines.items() if _leaks(line, metric)],
        )
        figures[f"scores_{name}"] = draw()
        if learnt := _learnt(history, list(lines)):
            figures[f"learnt_{name}"] = draw(accuracy=learnt)
    return figures


def _learnt(history: Sequence[RoundResult], attacked: Sequence[int]) -> dict[int, float]:
    """Return how well the models that attacked rounds sent do on test images; {}: they hardly differ."""
    known = {result.round + 1: result.accuracy for result in history if result.round + 1 in attacked}
    apart = len(known) > 2 and max(known.values()) - min(known.values()) > LEARNT
    return known if apart else {}
