"""What a run, a sweep or a comparison comes to, in a sentence or two: pure functions of what was measured."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedsim.core.errors import shortened
from fedsim.metrics.facts import MetricFacts, facts
from fedsim.storage.scores import ScoreRow, metric_lines
from fedsim.storage.status import Standing, Status

THINGS = {  # what may be recovered, and by which metric it is said, the most telling first
    "labels": ("irec", "lnacc", "leacc"),
    "images": (
        "psnr",
        "ssim",
        "lpips",
        "image_error",
        "psnr_best6",
        "ssim_best6",
        "lpips_best6",
    ),
    "embeddings": ("embedding_error", "embedding_cosine"),
    "probabilities": ("probability_cosine",),
    "examples for certain": ("certified",),
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a page begins with."""

    sentences: tuple[str, ...]
    points: tuple[str, ...] = ()  # such as one a defense
    leaks: bool = False  # somebody got more than a blind guess
    breached: bool = False  # a cheat got through

    @property
    def text(self) -> str:
        """The sentences in one line, without the points."""
        return " ".join(self.sentences).replace("\n", " ")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A mean beside its baseline, and on how many batches or runs it beat it."""

    metric: MetricFacts
    value: float
    baseline: float | None
    better: int | None = None  # of `number`; None: that is not known
    number: int = 0
    chance: float = 0.0  # how far from the baseline it gets by chance

    @property
    def leaks(self) -> bool:
        """Whether it is more than a blind guess gets; without a baseline nobody can say so."""
        return self.baseline is not None and self.metric.better(self.value, self.baseline, self.chance)

    def __str__(self) -> str:
        said = f"{self.metric.title} {self.metric.said(self.value)}"
        if self.baseline is None:
            return f"{said} (what a blind guess gets is not known)"
        chance = not self.leaks and self.metric.better(self.value, self.baseline)
        within = "; the difference is within chance" if chance else ""
        return f"{said} (a blind guess: {self.metric.said(self.baseline)}{within})"

    @property
    def aside(self) -> str:
        """The same, to stand in brackets."""
        return str(self).replace(" (", ", ").rstrip(")")


def listed(words: Iterable[object], last: str = "and") -> str:
    """Return a list as it is said: a, b and c."""
    found = [str(word) for word in words]
    return f" {last} ".join(filter(None, [", ".join(found[:-1]), *found[-1:]]))


def counted(number: int, thing: str, many: str = "") -> str:
    """Return how many there are of something."""
    return f"{number:,} {thing if number == 1 else many or thing + 's'}"


def leading(names: Iterable[str], kept: Mapping[str, object] | None = None) -> dict[str, str]:
    """Return by which metric each thing that was recovered is said; what is nobody's thing is its own."""
    known = list(dict.fromkeys(names))
    found = dict[str, str]()
    for thing, telling in THINGS.items():
        if chosen := [name for name in telling if name in known]:
            found[thing] = chosen[0]
    ours = {name for telling in THINGS.values() for name in telling}
    others = [facts(name, kept) for name in known if name not in ours]
    return found | {own.title: own.name for own in others if own.leaks}


def figures_of(rows: Sequence[ScoreRow], kept: Mapping[str, object] | None = None) -> dict[str, Figure]:
    """Return the telling figure of each thing that was recovered, over all batches."""
    lines = {line.name: line for line in metric_lines(rows)}
    found = dict[str, Figure]()
    for thing, name in leading(lines, kept).items():
        metric, line = facts(name, kept), lines[name]
        scored = [row for row in rows if row.metric == name and row.value is not None]
        pairs = [(row.value or 0.0, row.baseline) for row in scored if row.baseline is not None]
        found[thing] = Figure(
            metric=metric,
            value=line.mean,
            baseline=line.baseline,
            better=sum(metric.better(value, baseline) for value, baseline in pairs) if pairs else None,
            number=len(pairs),
            chance=line.chance,
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """What is known of a run's attack when it ended."""

    attack: str
    setting: str  # model and data
    defense: str  # empty: none
    figures: Mapping[str, Figure]
    standing: Standing
    observed: int = 0  # batches that the server saw something of
    guessed: int = 0  # batches that the attack answered for
    clients: int = 0  # whose they are
    summed: bool = False  # it saw sums over clients alone
    refused: int = 0  # replies that clients kept back when they saw what they were sent
    faults: int = 0
    blindly: bool = False  # no truth is known
    accuracy: float | None = None  # of the model that was trained


def run_answer(run: Attacked) -> Answer:
    """Say what an attack recovered, of whom, how surely, against which defense."""
    behind = f"behind {run.defense}" if run.defense else "with no defense"
    said = list[str]()
    if run.refused:
        times = counted(run.refused, "time")
        said.append(f"A client noticed what it was sent, and refused to answer, {times}.")
    if run.standing.status is Status.GAVE_UP:
        said.append(f"{run.attack} gave up {behind}: {shortened(run.standing.reason, 300)}")
    elif run.standing.status is not Status.COMPLETE:
        said.append(f"This run did not complete ({run.standing.status or 'not finished'}).")
    trained = "" if run.accuracy is None else f", to a test accuracy of {100 * run.accuracy:.1f} %"
    if run.figures:
        said += _recovered(run, behind)
    elif run.standing.status is Status.COMPLETE:
        if run.attack == "none":
            said.append(f"Nobody attacked: {run.setting} was trained {behind}{trained}.")
        elif run.blindly:
            batches = counted(run.guessed, "batch", "batches")
            said.append(f"{run.attack} answered for {batches} ({run.setting}, {behind}).")
            said.append("No truth is known of them, so nothing is scored.")
        else:
            said.append(f"{run.attack} recovered nothing that could be scored ({run.setting}, {behind}).")
    if run.figures and run.guessed < run.observed:
        said.append(f"It answered for {run.guessed:,} of {counted(run.observed, 'batch', 'batches')}.")
    if run.faults:
        said.append(f"{counted(run.faults, 'reply or attack', 'replies or attacks')} failed.")
    return Answer(sentences=tuple(said), leaks=any(figure.leaks for figure in run.figures.values()))


def _recovered(run: Attacked, behind: str) -> list[str]:
    whose = f" of {counted(run.clients, 'client')}" if run.clients else ""
    what = counted(run.guessed, "batch", "batches")
    if run.summed:
        what = counted(run.guessed, "sum over all clients' batches", "sums over all clients' batches")
    where = f"{what}{whose} ({run.setting}, {behind})"
    leaking = {thing: figure for thing, figure in run.figures.items() if figure.leaks}
    missed = {t: f for t, f in run.figures.items() if not f.leaks and f.baseline is not None}
    unknown = [figure for figure in run.figures.values() if figure.baseline is None]
    said = list[str]()
    if leaking:
        each = "; ".join(f"{figure}{_surely(figure)}" for figure in leaking.values())
        said.append(f"{run.attack} recovered {listed(leaking)} from {where}: {each}.")
        if missed:
            telling = [f"{t} ({f.aside})" if t in ("labels", "images") else t for t, f in missed.items()]
            said.append(f"No better than a blind guess: {listed(telling)}.")
    elif missed:
        each = "; ".join(map(str, missed.values()))
        said.append(f"{run.attack} is no better than a blind guess on {where}: {each}.")
    if unknown:
        said.append(f"{'Besides' if said else f'{run.attack} on {where}'}: {'; '.join(map(str, unknown))}.")
    return said


def _surely(figure: Figure) -> str:
    """Say on how many batches."""
    if figure.better is None or figure.number < 2:
        return ""
    if figure.better == figure.number:
        return f", better on each of {figure.number:,} batches"
    return f", better on {figure.better:,} of {figure.number:,} batches"


@dataclass(frozen=True, kw_only=True)
class SweptRun:
    """One run of a sweep: what distinguishes it, and its telling figure."""

    label: str
    figure: Figure | None  # None: it has none


def sweep_answer(runs: Sequence[SweptRun], failed: int) -> Answer:
    """Say where an attack got most and least, and where nothing leaks."""
    own = [(run.label, run.figure) for run in runs if run.figure is not None]
    said = list[str]()
    if own:
        metric = own[0][1].metric
        same = [(label, figure) for label, figure in own if figure.metric.name == metric.name]
        ordered = sorted(same, key=lambda pair: pair[1].value, reverse=metric.highest)
        (best_at, best), (worst_at, worst) = ordered[0], ordered[-1]
        if len(same) == 1:
            said.append(f"One run has a figure: {best}, with {best_at}.")
        elif not metric.better(best.value, worst.value):
            said.append(f"All {len(same)} runs give the same: {best}.")
        else:
            said.append(f"Most with {best_at}: {best}; least with {worst_at}: {worst}.")
        compared = [figure for _, figure in same if figure.baseline is not None]
        lost = sum(not figure.leaks for figure in compared)
        if compared and metric.leaks:
            one = f"{lost} of {counted(len(compared), 'run')} {'is' if lost == 1 else 'are'}"
            all_lost = f"All {counted(len(compared), 'run')} are" if lost > 1 else "The run is"
            start = all_lost if lost == len(compared) else one
            every = f"{'Every run' if len(compared) > 1 else 'It'} beats a blind guess."
            said.append(f"{start} no better than a blind guess." if lost else every)
    else:
        said.append(f"None of {counted(len(runs), 'run')} has a figure to compare.")
    if failed:
        said.append(f"{counted(failed, 'run')} did not complete.")
    return Answer(sentences=tuple(said), leaks=any(figure.leaks for _, figure in own))
