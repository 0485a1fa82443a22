"""What to try on a deployment: the attacks that fit it, by a stated rule, and the defenses to compare with.

The rule: `leaks.attacks` lists attacks by kind, the strongest first. All that the model's structure admits
are tried behind the defenses in force, and with none; of every kind those that got most there meet every step
of `leaks.ladder`. What does not fit, or no time is left for, is named with the reason.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedsim.config import build
from fedsim.config.compose import composed, key, parsed
from fedsim.core.errors import FedsimError, in_words
from fedsim.core.federation import Federation
from fedsim.core.settings import number
from fedsim.lab.compare import Choice, Comparison, attack_choice, attack_jobs, defense_choice, training_jobs
from fedsim.lab.experiment import Experiment, expect_fit
from fedsim.lab.grid import Job, RunJob
from fedsim.lab.record import GaveUp
from fedsim.lab.replay import prepare_replay, replay_settings
from fedsim.report.leaks import RECORDED
from fedsim.storage.comparison import Cell
from fedsim.storage.runfolder import RunFolder

OBSERVED = 2  # clients of a round that are attacked, unless the settings say which
KNOWING = "threat.knows_defense=true"  # every attacker is told what it is up against


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An attack that was thought of."""

    attack: Choice
    kind: str  # under which `leaks.attacks` lists it
    sends: bool = False  # weights of its own: the server is malicious, not only curious
    timed: bool = False  # it takes a time budget, and then has an answer
    reason: str = ""  # why it does not fit; empty: it does


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What to try, how long, and where the results go."""

    candidates: tuple[Candidate, ...]
    comparison: Comparison  # of the attacks that fit, with the defenses in force first
    seconds: float
    source: Path | None = None  # a recording to attack; None: federations are played
    unfit: tuple[str, ...] = ()  # steps of the ladder that cannot be tried, with the reason

    def trainings(self, defense: Choice) -> list[Job]:
        """Return the federations to play with a defense."""
        return [] if self.source else training_jobs(self._only(defense, ()))

    def attacks(self, defense: Choice, attacks: Sequence[Choice]) -> list[RunJob]:
        """Return the attacks on what was played or recorded, in their order."""
        if self.source is None:
            sends = {one.attack.label: one.sends for one in self.candidates}
            return attack_jobs(self._only(defense, attacks), sends)
        return [
            RunJob(
                path=self.comparison.folder
                / Cell.of(own.label, defense.label, self.comparison.seeds[0]).folder,
                overrides=(*self.comparison.common, *own.overrides, *defense.overrides),
                source=self.source,
            )
            for own in attacks
        ]

    def _only(self, defense: Choice, attacks: Sequence[Choice]) -> Comparison:
        return dataclasses.replace(self.comparison, attacks=tuple(attacks), defenses=(defense,))


def federation_audit(overrides: Sequence[str]) -> Audit:
    """Choose attacks and defenses for a federation by its settings."""
    given = _given(overrides)
    settings = {name: text for name, text in given.items() if name != "into"}
    base = composed([*settings.values(), "attack=none", "name=leaks"])
    defended = [text for name, text in settings.items() if _top(name) == "defense"]
    others = ("leaks", "defense", "hydra", "jobs", "seed")
    common = [text for name, text in settings.items() if _top(name) not in others]
    seed, rules = base.config.seed, build.experiment(base.config).federation
    common += _attacked_rounds(rules)
    in_force = Choice(label=_in_force(base.config.defense, defended), overrides=tuple(defended))
    none = (defense_choice("none"),) if base.config.defense else ()
    rungs = [rung for rung in _ladder(base.config.leaks.ladder) if rung.label != in_force.label]

    def named(attack: Choice) -> DictConfig:
        return composed([*common, *defended, *attack.overrides, "name=leaks"]).config

    def built(attack: Choice) -> Experiment:
        return build.experiment(named(attack))

    return _audit(
        base.config.leaks,
        tuple(_candidates(base.config.leaks.attacks, built, named)),
        defenses=tuple(_on_few_clients(own, common, rules, seed) for own in (in_force, *none, *rungs)),
        seed=seed,
        common=tuple(common),
        folder=_folder(given, base.folder),
        asked=tuple(text for name, text in given.items() if name not in ("into", "jobs")),
    )


def recording_audit(source: RunFolder, overrides: Sequence[str], allowed: Sequence[str]) -> Audit:
    """Choose attacks for a run's observations, or those of another's Flower app that a Wiretap kept."""
    given = _given(overrides)
    if asked := [text for name, text in given.items() if _top(name) == "defense"]:
        raise FedsimError(
            f"leaks: a recording has the defenses that were in force, got {asked[0]!r}. "
            "Remedy: leaks.ladder=[...] for others to compare with; fedsim replay for one."
        )
    if source.count_observations() == 0:
        raise FedsimError(
            f"{source.path} holds no observations to attack. Remedy: a run with attacked rounds."
        )
    own = [text for name, text in given.items() if _top(name) == "leaks"]
    base = composed([*own, "attack=none", "name=leaks"])
    common = [text for name, text in given.items() if _top(name) not in ("leaks", "into", "hydra")]

    def built(attack: Choice, *more: str) -> Experiment:
        found = prepare_replay(source, [*common, *attack.overrides, *more], allowed)[0]
        if found.attack.crafts() and attack is not on_record:
            raise FedsimError("it sends weights of its own, and what was sent is on record.")
        return found

    def named(attack: Choice) -> None:
        replay_settings(source, [*common, *attack.overrides])

    on_record: Choice | None = None
    nobody, rungs, unfit = Choice(label="none", overrides=("attack=none",)), list[Choice](), list[str]()
    seed, on_record = built(nobody).seed, _crafting(source, allowed)
    recorded = _looked_at("on record", on_record, built) if on_record else ()
    for rung in _ladder(base.config.leaks.ladder):
        try:
            built(nobody, *rung.overrides)
            rungs.append(rung)
        except FedsimError as error:
            unfit.append(f"{rung.label}: {error}")
    made = _audit(
        base.config.leaks,
        (*recorded, *_candidates(base.config.leaks.attacks, built, named)),
        defenses=(Choice(label=RECORDED, overrides=()), *rungs),
        seed=seed,
        common=tuple(common),
        folder=_folder(given, base.folder),
        asked=(str(source.path), *(text for name, text in given.items() if name != "into")),
    )
    return dataclasses.replace(made, source=source.path, unfit=tuple(unfit))


def _crafting(source: RunFolder, allowed: Sequence[str]) -> Choice | None:
    """Return the attack whose weights a run has on record, if it sent weights of its own."""
    if source.kind == "wiretap":
        return None
    played = prepare_replay(source, [], allowed)[0]
    return Choice(label=played.attack_name, overrides=(KNOWING,)) if played.attack.crafts() else None


def _audit(
    settings: Any,
    candidates: tuple[Candidate, ...],
    *,
    defenses: tuple[Choice, ...],
    seed: int,
    common: tuple[str, ...],
    folder: Path,
    asked: tuple[str, ...],
) -> Audit:
    fitting = tuple(one.attack for one in candidates if not one.reason)
    if not candidates:
        raise FedsimError("leaks.attacks: expected an attack, got empty lists alone.")
    if not fitting:
        reasons = "; ".join(f"{one.attack.label}: {one.reason}" for one in candidates)
        raise FedsimError(f"leaks: no attack fits this model. {reasons}")
    return Audit(
        candidates=candidates,
        comparison=Comparison(
            attacks=fitting,
            defenses=defenses,
            seeds=(seed,),
            common=common,
            folder=folder,
            jobs=1,
            asked=asked,
        ),
        seconds=60 * number("leaks.minutes", settings.minutes, above=0),
    )


def _given(overrides: Sequence[str]) -> dict[str, str]:
    """Read what was asked for, by key."""
    given = {key(override): str(override.input_line) for override in parsed(overrides)}
    for name in ("attack", "name", "keep"):
        if name in given:
            raise FedsimError(
                f"leaks: expected settings of the federation, got {given[name]!r}: attacks are chosen by "
                "kind. Remedy: leaks.attacks.exact=[NAME,...]; fedsim compare for attacks of your choice."
            )
    return given


def _in_force(defenses: Mapping[str, Any], asked: Sequence[str]) -> str:
    """Name the defenses in force, with the settings that were asked for."""
    said = []
    for name in map(str, defenses or {}):
        start = f"defense.{name}."
        own = [text.removeprefix(start).replace("=", " ") for text in asked if text.startswith(start)]
        said.append(f"{name} ({', '.join(own)})" if own else name)
    return " + ".join(said) or "none"


def _top(name: str) -> str:
    return name.partition(".")[0]


def _folder(given: Mapping[str, str], otherwise: Path) -> Path:
    return Path(str(parsed([given["into"]])[0].value()) if "into" in given else otherwise).resolve()


def _ladder(listed: Any) -> list[Choice]:
    entries: Any = OmegaConf.to_container(listed) if OmegaConf.is_config(listed) else listed
    return [defense_choice(entry) for entry in _list("leaks.ladder", entries) if entry != "none"]


def _attacked_rounds(rules: Federation) -> list[str]:
    """Attack the first, the middle and the last round, unless the settings say which."""
    if rules.attacked_rounds is not None:
        return []
    rounds = sorted({1, (1 + rules.rounds) // 2, rules.rounds})
    return [f"federation.attacked_rounds={rounds}".replace(" ", "")]


def _on_few_clients(choice: Choice, common: Sequence[str], rules: Federation, seed: int) -> Choice:
    """Attack few clients of each attacked round; of a sum, all that are in it."""
    config = composed([*common, *choice.overrides, "attack=none", f"seed={seed}", "name=leaks"]).config
    experiment = build.experiment(config)
    if rules.attacked_clients is not None or any(own.sums_replies for own in experiment.defenses):
        return choice
    own = experiment.federation
    chosen = {c for round in own.attacked_rounds or () for c in own.participants(seed, round)[:OBSERVED]}
    clients = f"federation.attacked_clients={sorted(chosen)}".replace(" ", "")
    return dataclasses.replace(choice, overrides=(*choice.overrides, clients))


def _candidates(
    listed: Any, built: Callable[[Choice], Experiment], named: Callable[[Choice], object]
) -> Iterator[Candidate]:
    """Look at every listed attack; a name that is none is a mistake, not an attack that does not fit."""
    kinds: Any = OmegaConf.to_container(listed)
    for kind, entries in kinds.items():
        for entry in _list(f"leaks.attacks.{kind}", entries):
            plain = attack_choice(entry)
            attack = dataclasses.replace(plain, overrides=(*plain.overrides, KNOWING))
            named(attack)
            yield from _looked_at(kind, attack, built)


def _looked_at(kind: str, attack: Choice, built: Callable[[Choice], Experiment]) -> Iterator[Candidate]:
    """Say whether an attack fits the model, and whether it sends weights of its own."""
    try:
        found = built(attack)
        expect_fit(found)
    except GaveUp as refusal:
        yield Candidate(attack=attack, kind=kind, reason=str(refusal.__cause__ or refusal))
    except FedsimError as error:
        yield Candidate(attack=attack, kind=kind, reason=in_words(error))
    else:
        sends, timed = found.attack.crafts(), hasattr(found.attack, "seconds")
        yield Candidate(attack=attack, kind=kind, sends=sends, timed=timed)


def _list(name: str, entries: Any) -> list[Any]:
    if not isinstance(entries, list):
        raise FedsimError(f"{name}: expected a list, [NAME,...], got {entries!r}")
    return entries
