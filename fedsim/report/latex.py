r"""Scores of many runs as a LaTeX table: a line for every attack, defense and metric, baselines beside them.

It needs \usepackage{booktabs}. Runs that differ by their seed alone are one line. Three and more of them: the
mean of the runs' means with its 95 % interval by Student's t. Fewer: the mean, and the range it came of.
"""

from collections.abc import Sequence
from statistics import fmean

from fedsim.metrics.facts import MetricFacts, facts
from fedsim.report.comparison_grid import Entry
from fedsim.report.overview import Overview
from fedsim.report.tidy import Exported
from fedsim.storage.scores import as_figure

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": r"{-}",  # two of them would be a dash
    "–": "--",
    "±": r"$\pm$",
}
NAMED = ("attack", "defense", "model", "data")


def latex_table(found: Exported, metrics: Sequence[str] = ()) -> str:
    """Return the table; metrics: these alone, otherwise all that have a baseline."""
    groups = _groups(found)
    keys = [*NAMED, *found.varied]
    shown = [key for place, key in enumerate(keys) if len({own[place] for own in groups}) > 1] or ["attack"]
    places = [keys.index(key) for key in shown]
    lines = list[str]()
    for own, runs in groups.items():
        cells = [tex(own[place]) for place in places]
        scored = _scored(runs, metrics)
        for number, (metric, figures) in enumerate(scored.items()):
            lead = cells if number == 0 else [""] * len(cells)
            lines.append(" & ".join([*lead, tex(_named(facts(metric))), *figures]) + r" \\")
        if scored:
            lines.append(r"\addlinespace")
    if lines:
        lines.pop()
    same = {key: next(iter(groups))[place] for place, key in enumerate(keys) if key not in shown}
    heading = [*(tex(key) for key in shown), "metric", "value", "baseline", "seeds"]
    return "\n".join(
        [
            r"% \usepackage[T1]{fontenc} \usepackage{textcomp} \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_caption(same)}}}",
            rf"\begin{{tabular}}{{{'l' * (len(shown) + 1)}rrr}}",
            r"\toprule",
            " & ".join(heading) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def tex(words: str) -> str:
    """Return words as LaTeX sets them; letters that its fonts may lack by their number."""
    return "".join(
        SPECIAL.get(letter)
        or (
            letter
            if letter.isascii() or letter in "äöüÄÖÜßéèêëáàâíìîïóòôúùûçñåæøÅÆØ"
            else f"U+{ord(letter):04X}"
        )
        for letter in words
        if letter.isprintable()
    )


def figure(value: float) -> str:
    """Return a number as LaTeX sets it: a comma in it is no end of a clause."""
    return f"${as_figure(value).replace(',', '{,}')}$"


def spread(entry: Entry) -> str:
    """Return a mean with its interval, or with the range of few values."""
    if (width := entry.interval) is not None:
        return rf"{figure(entry.mean)} $\pm$ {figure(width)}"
    if len(entry.values) == 1:
        return figure(entry.mean)
    return f"{figure(entry.mean)} ({figure(min(entry.values))} to {figure(max(entry.values))})"


def _groups(found: Exported) -> dict[tuple[str, ...], list[Overview]]:
    """Return complete runs that differ by their seed alone together."""
    groups: dict[tuple[str, ...], list[Overview]] = {}
    for run in found.runs:
        own = [run.chosen.get(key, "") for key in NAMED]
        own += [run.settings.get(key, "") for key in found.varied]
        groups.setdefault(tuple(own), []).append(run)
    return groups


def _scored(runs: Sequence[Overview], metrics: Sequence[str]) -> dict[str, list[str]]:
    """Return value, baseline and number of seeds of each metric, as LaTeX."""
    by_seed = {run.chosen.get("seed"): run for run in reversed(runs) if run.status == "complete"}
    complete = list(reversed(by_seed.values()))  # of one seed, one: the same again is no further evidence
    named = dict.fromkeys(name for run in complete for name in run.metrics)
    scored = list[str](metrics) or [name for name in named if any(name in run.baselines for run in complete)]
    found = dict[str, list[str]]()
    for name in scored:
        values = [value for run in complete if (value := run.metrics.get(name)) is not None]
        blind = [value for run in complete if (value := run.baselines.get(name)) is not None]
        if values:
            entry = Entry(values=tuple(values), baseline=fmean(blind) if blind else None)
            baseline = "--" if entry.baseline is None else figure(entry.baseline)
            found[name] = [spread(entry), baseline, str(len(values))]
    return found


def _named(metric: MetricFacts) -> str:
    """Name a metric, with its unit where a figure without it says little: dB, but not a share."""
    return metric.title if metric.unit.startswith("share") else metric.with_unit


def _caption(same: dict[str, str]) -> str:
    where = ", ".join(f"{tex(key)} {tex(value)}" for key, value in same.items() if value)
    return (
        f"{where + '. ' if where else ''}Means over attacked batches and then over seeds; "
        r"with three or more seeds $\pm$ half the 95\,\% interval of the mean by Student's t, with two their "
        "range. Baseline: the best guess without a gradient."
    )
