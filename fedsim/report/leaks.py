"""What a deployment leaks, in words: to a curious server, to a malicious one, and what would stop it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.report.answers import Answer, Figure, listed
from fedsim.report.answers_comparison import Defended, costs_in_words

UNFIT = "does not fit"
RECORDED = "as recorded"  # the row of what was in force when a recording was made
INNER = ("embedding", "probability")  # figures of what a network computes, beside those of its data
SERVERS = {
    False: "A server that only looks at what it receives",
    True: "A server that sends weights of its own",
}


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One attack of an audit, and what it got behind the defenses in force."""

    attack: str
    kind: str
    sends: bool
    figures: Sequence[Figure]
    outcome: str  # why there is no figure; empty: there is


def tried_of(
    chosen: Iterable[Mapping[str, Any]], in_force: Defended, problems: Mapping[tuple[str, str], str]
) -> list[Tried]:
    """Return every attack that was thought of, in the order of `leaks.attacks`."""
    return [
        Tried(
            attack=str(one["attack"]),
            kind=str(one["kind"]),
            sends=bool(one["sends"]),
            figures=in_force.figures.get(str(one["attack"]), ()),
            outcome=f"{UNFIT}: {one['reason']}"
            if one["reason"]
            else problems.get((str(one["attack"]), in_force.defense), ""),
        )
        for one in chosen
    ]


def leaks_answer(defended: Sequence[Defended], tried: Sequence[Tried], skipped: Sequence[str]) -> Answer:
    """Say what each kind of server recovers behind the defenses in force, and what to do about it."""
    in_force = defended[0]
    labels = {"none": "with no defense", RECORDED: RECORDED}
    behind = labels.get(in_force.defense, f"behind {in_force.defense}")
    said = [_recovered(SERVERS[sends], [t for t in tried if t.sends is sends], behind) for sends in SERVERS]
    said.append(_advice(defended))
    if skipped:
        said.append(f"Not tried: {listed(words.partition(':')[0] for words in skipped)}; below is why.")
    plain = next((own for own in defended if own.defense == "none"), None)
    return Answer(
        sentences=tuple(filter(None, said)),
        points=tuple(_behind(own, plain, in_force) for own in defended),
        leaks=bool(in_force.leaks),
    )


def best_of(figures: Mapping[str, Sequence[Figure]]) -> dict[str, tuple[str, Figure]]:
    """Return of every figure that leaks the best, with the attack that got it; of equal ones the first."""
    best = dict[str, tuple[str, Figure]]()
    for attack, own in figures.items():
        for figure in own:
            known = best.get(figure.metric.name)
            if figure.leaks and (known is None or figure.metric.better(figure.value, known[1].value)):
                best[figure.metric.name] = attack, figure
    return best


def strongest(defended: Iterable[Defended], kinds: Mapping[str, str]) -> set[str]:
    """Return of every kind the attacks that got most of something; and those of which nobody knows."""
    found = set[str]()
    for own in defended:
        found |= {*own.failed, *own.unknown}
        for kind in set(kinds.values()):
            of_kind = {
                attack: figures for attack, figures in own.figures.items() if kinds.get(attack) == kind
            }
            found |= {attack for attack, _ in best_of(of_kind).values()}
    return found


def _in_words(best: Mapping[str, tuple[str, Figure]]) -> str:
    """Say who got what; inner figures, such as likeness of embeddings, only where there is nothing else."""
    telling = {name: own for name, own in best.items() if not name.startswith(INNER)} or best
    return "; ".join(f"{figure} by {attack}" for attack, figure in telling.values())


def _recovered(server: str, tried: Sequence[Tried], behind: str) -> str:
    """Say the most that any attack got of each thing."""
    fitting = [own for own in tried if own.figures or not own.outcome.startswith(UNFIT)]
    if not fitting:
        return f"{server}: no attack of the list fits this model." if tried else ""
    if best := best_of({own.attack: own.figures for own in fitting}):
        return f"{server} recovers, {behind}: {_in_words(best)}."
    scored = [own.attack for own in fitting if own.figures]
    others = [own.attack for own in fitting if not own.figures]
    if not scored:
        return f"{server}: nothing could be scored {behind}, of {listed(others)}."
    without = f"; of {listed(others)} there is nothing to score" if others else ""
    return f"{server} gets no more than a blind guess {behind}, by {listed(scored)}{without}."


def _behind(own: Defended, plain: Defended | None, in_force: Defended) -> str:
    """Say the most that leaks behind a defense, and what it costs beside none."""
    leaks = f"leaks {_in_words(best_of(own.figures))}" if own.leaks else ""
    stops = "nothing leaks" if own is in_force else "stops all that was tried"
    failed = f"{listed(own.failed)} did not complete" if own.failed else ""
    costs = costs_in_words(own.costs, None if plain is None or own is plain else plain.costs)
    said = filter(None, (leaks, stops if own.stops_all else "", failed, costs))
    return f"{own.defense}: {'; '.join(said)}."


def _advice(defended: Sequence[Defended]) -> str:
    """Name the defense that stops all that was tried at the least cost in accuracy, or say that none does."""
    in_force, others = defended[0], [own for own in defended[1:] if own.defense != "none"]
    if in_force.stops_all:
        return "Nothing that was tried leaks: what is in force may stay as it is."
    stopping = [own for own in others if own.stops_all]
    if not stopping:
        tried = listed(own.defense for own in others)
        return (
            f"What to do: none of the defenses that were tried stops every attack ({tried})." if tried else ""
        )
    known = [own for own in stopping if "accuracy" in own.costs]
    if not known:
        names, stop = listed(own.defense for own in stopping), "stops" if len(stopping) == 1 else "stop"
        return f"What to do: {names} {stop} every attack; what that costs, only a training can show."
    least = max(known, key=lambda own: own.costs["accuracy"])
    cost = costs_in_words(least.costs, in_force.costs)
    return (
        f"What to do: of what was tried and stops every attack, {least.defense} is the cheapest: it {cost}."
    )
