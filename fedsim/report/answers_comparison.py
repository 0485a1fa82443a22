"""What a comparison comes to: one sentence a defense, what it stops and what it costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedsim.report.answers import Answer, Figure, listed

CLOSE = 0.0005  # of test accuracy: no difference that a table shows


@dataclass(frozen=True, kw_only=True)
class Defended:
    """What all attacks got behind a defense, and what it costs."""

    defense: str
    figures: Mapping[str, Sequence[Figure]]  # by attack; none: it claims nothing
    gave_up: Sequence[str] = ()  # attacks
    failed: Sequence[str] = ()
    costs: Mapping[str, float] = field(default_factory=dict)

    @property
    def leaks(self) -> dict[str, list[Figure]]:
        """What is more than a blind guess, by attack."""
        found = {attack: [f for f in own if f.leaks] for attack, own in self.figures.items()}
        return {attack: own for attack, own in found.items() if own}

    @property
    def unknown(self) -> dict[str, list[Figure]]:
        """Figures that have no baseline, by attack: whether they are leaks, nobody can say."""
        found = {attack: [f for f in own if f.baseline is None] for attack, own in self.figures.items()}
        return {attack: own for attack, own in found.items() if own and attack not in self.leaks}

    @property
    def stops_all(self) -> bool:
        """Whether every attack ended, and none got more than a blind guess."""
        measured = any(self.figures.values()) or bool(self.gave_up)
        return measured and not (self.leaks or self.unknown or self.failed)


def comparison_answer(defended: Sequence[Defended], undefended: str = "none") -> Answer:
    """Say which defenses stop everything, and of each what it stops and costs."""
    plain = next((own for own in defended if own.defense == undefended), None)
    tried = [own for own in defended if own is not plain] or list(defended)
    stopping = [own.defense for own in tried if own.stops_all]
    leaking = [own.defense for own in defended if own.leaks]
    of_all = f"Of {len(tried)} defenses, " if len(tried) > 1 else ""
    if not any(own.leaks or own.stops_all for own in defended):
        first = "Nothing was scored beside a baseline: whether anything leaks, this comparison cannot say."
    elif not leaking:
        first = "Nothing leaks: no attack got more than a blind guess behind any defense."
    elif stopping:
        stop = "stops" if len(stopping) == 1 else "stop"
        first = f"{of_all}{listed(stopping)} {stop} every attack."
    else:
        first = (
            f"{of_all}none stops every attack." if of_all else f"{leaking[-1]} does not stop every attack."
        )
    return Answer(
        sentences=(first, *_weak(defended, plain)),
        points=tuple(defense_sentence(own, None if plain is own else plain) for own in defended),
        leaks=bool(leaking),
    )


def _weak(defended: Sequence[Defended], plain: Defended | None) -> list[str]:
    """Say which attacks do not work whatever they meet: that is no merit of a defense."""
    said = list[str]()
    useless = [name for name in defended[0].gave_up if all(name in own.gave_up for own in defended)]
    if useless:
        said.append(f"{listed(useless)} gave up everywhere.")
    if plain is not None:
        weak = [a for a, own in plain.figures.items() if own and a not in {*plain.leaks, *plain.unknown}]
        if weak:
            said.append(f"Even with no defense, {listed(weak)} got no more than a blind guess.")
    return said


def defense_sentence(own: Defended, plain: Defended | None) -> str:
    """Say what a defense stops and what it costs; plain: the same without one."""
    leaks, unknown = own.leaks, own.unknown
    working = [attack for attack in own.figures if plain is None or attack in plain.leaks]
    ended = [attack for attack in working if attack not in {*leaks, *unknown, *own.failed}]
    stopped = [attack for attack in ended if own.figures[attack] or attack in own.gave_up]
    said = list[str]()
    if stopped and (plain is not None or not leaks):
        said.append(f"{'stops' if plain else 'nothing leaks to'} {listed(stopped)}")
    if leaks:
        each = [f"{attack} ({'; '.join(f.aside for f in found)})" for attack, found in leaks.items()]
        said.append(f"{'still leaks' if plain else 'leaks'} to {listed(each)}")
    if unknown:
        said.append("; ".join(f"{a} gets {listed(f.aside for f in found)}" for a, found in unknown.items()))
    if own.failed:
        said.append(f"{listed(own.failed)} did not complete")
    said.append(costs_in_words(own.costs, None if plain is None else plain.costs))
    joined = "; ".join(filter(None, said)) or "nothing was scored"
    return f"{own.defense}: {joined}."


def costs_in_words(costs: Mapping[str, float], plain: Mapping[str, float] | None) -> str:
    """Say what a defense costs in accuracy and in bytes beside no defense, or how it is by itself."""
    said = list[str]()
    if (accuracy := costs.get("accuracy")) is not None:
        before = None if plain is None else plain.get("accuracy")
        if before is None:
            said.append(f"test accuracy {100 * accuracy:.1f} %")
        elif abs(accuracy - before) < CLOSE:
            said.append("costs no test accuracy")
        else:
            way = "costs" if accuracy < before else "gains"
            points = f"{100 * abs(accuracy - before):.1f} points of test accuracy"
            said.append(f"{way} {points} ({100 * accuracy:.1f} % instead of {100 * before:.1f} %)")
    if (size := costs.get("bytes")) is not None:
        before = None if plain is None else plain.get("bytes")
        if before is None:
            said.append(f"{size:,.0f} bytes a reply")
        elif round(size) == round(before):
            said.append("as many bytes")
        else:
            said.append(f"{size:,.0f} bytes a reply instead of {before:,.0f}")
    return ", ".join(said)
