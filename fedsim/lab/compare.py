"""Every attack against every defense, with the same seeds, batches and first model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from fedsim.config import build
from fedsim.config.compose import composed, key, parsed
from fedsim.config.plugins import key_of
from fedsim.core.errors import FedsimError
from fedsim.core.settings import whole
from fedsim.lab.grid import Job, RunJob, RunsFailed, begin_or_go_on, pool_of, run_missing
from fedsim.lab.record import recorded
from fedsim.storage.comparison import Cell, folder_name, write_cells
from fedsim.storage.runfolder import RunFolder

OWN = ("attack", "defense", "seeds", "into")  # keys of a comparison
PASSING = ("jobs", "hydra.run.dir")  # that leave the runs as they are
FIRST_SEED = "seed"  # of every run that is compared, another


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An attack or a list of defenses with settings, as one column or row of the comparison."""

    label: str
    overrides: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared with what, where, by how many processes at once."""

    attacks: tuple[Choice, ...]
    defenses: tuple[Choice, ...]
    seeds: tuple[int, ...]
    common: tuple[str, ...]  # overrides of every run
    folder: Path
    jobs: int
    asked: tuple[str, ...] = ()  # for the command that the report shows


def comparison_of(overrides: Sequence[str]) -> Comparison:
    """Read `attack=[...] defense=[...] seeds=3 seed=0 jobs=2 into=DIR KEY=VALUE ...`; seed is the first."""
    given = {key(override): override for override in parsed(overrides)}
    if "keep" in given:
        raise FedsimError("compare: attacks need all that trainings keep. Remedy: leave out keep.")
    if "name" in given:
        raise FedsimError("compare: name differs from run to run. Remedy: into=DIR.")
    others = {name: str(override.input_line) for name, override in given.items() if name not in OWN}
    base = composed([*others.values(), "name=comparison"])
    common = [text for name, text in others.items() if name not in (*PASSING, FIRST_SEED)]
    found: dict[str, Any] = {"attack": None, "defense": ["none"], "seeds": 1}
    found |= _listed(base.config.comparison, common, given)
    found |= {name: given[name].value() for name in OWN if name in given}
    for name, example in (("attack", "[ilrg,span_matching]"), ("defense", "[none,noise,[clip,noise]]")):
        if not isinstance(found[name], list) or not found[name]:
            raise FedsimError(f"compare: expected {name}=[NAME,...], for example {name}={example}")
    first = whole("compare: seed", base.config.seed, least=None)
    seeds = range(first, first + whole("compare: seeds", found["seeds"]))
    made = Comparison(
        attacks=tuple(attack_choice(entry) for entry in found["attack"]),
        defenses=tuple(defense_choice(entry) for entry in found["defense"]),
        seeds=tuple(seeds),
        common=tuple(common),
        folder=(Path(str(found["into"])) if found.get("into") is not None else base.folder).resolve(),
        jobs=base.config.jobs,
        asked=tuple(text for text in overrides if not text.startswith(("jobs=", "into=", "hydra."))),
    )
    for kind, choices in (("attack", made.attacks), ("defense", made.defenses)):
        labels = [folder_name(choice.label) for choice in choices]
        if twice := {label for label in labels if labels.count(label) > 1}:
            raise FedsimError(f"compare: {kind}: {min(twice)!r} is there twice")
    return made


def _listed(node: Any, common: Sequence[str], given: Mapping[str, object]) -> dict[str, Any]:
    """Return what an experiment says under `comparison`."""
    comparison: Any = OmegaConf.to_container(node)
    named = [text for text in common if key(parsed([text])[0]) == "experiment"]
    if named and not comparison and "attack" not in given:
        raise FedsimError(
            f"compare: {named[0]} holds no comparison. Remedy: attack=[...] defense=[...] beside it, or "
            "experiment=defense_leaderboard."
        )
    if unknown := comparison.keys() - {"attack", "defense", "seeds"}:
        raise FedsimError(f"comparison: expected attack, defense and seeds, got {min(unknown, key=str)!r}")
    return {str(name): value for name, value in comparison.items()}


def compare(comparison: Comparison) -> RunFolder:
    """Run what is missing of a comparison; failed runs are a RunsFailed when the others have ended."""
    crafting = {
        attack.label: _experiment(comparison, *attack.overrides).attack.crafts()
        for attack in comparison.attacks
    }
    for defense in comparison.defenses:  # whose settings are checked before anything runs
        _experiment(comparison, "attack=none", *defense.overrides)
    folder = RunFolder(comparison.folder)
    settings = {"name": "comparison", "common": sorted(comparison.common)}
    begin_or_go_on(folder, "comparison", yaml.safe_dump(settings, sort_keys=False))
    cells = [
        Cell.of(attack.label, defense.label, seed, knows="threat.knows_defense=True" in attack.overrides)
        for attack in comparison.attacks
        for defense in comparison.defenses
        for seed in comparison.seeds
    ]
    with recorded(folder, folder.path.name, lambda: {"metrics": {}, "asked": list(comparison.asked)}):
        write_cells(folder.storage, cells)
        with pool_of(comparison.jobs) as pool:
            problems = run_missing(training_jobs(comparison), "trainings", pool)
            problems += run_missing(attack_jobs(comparison, crafting), "attacks", pool)
        if problems:
            raise RunsFailed(problems)
    return folder


def _experiment(comparison: Comparison, *overrides: str) -> Any:
    return build.experiment(composed([*comparison.common, *overrides, "name=check"]).config)


def training_jobs(comparison: Comparison) -> list[Job]:
    """Return the federations: one for each defense and seed, whatever attacks it."""
    jobs = list[Job]()
    for defense in comparison.defenses:
        for seed in comparison.seeds:
            path = comparison.folder / Cell.of("", defense.label, seed).training
            own = (
                *comparison.common,
                *defense.overrides,
                "attack=none",
                f"seed={seed}",
                f"name='{path.name}'",
            )
            jobs.append(RunJob(path=path, overrides=own))
    return jobs


def attack_jobs(comparison: Comparison, crafting: Mapping[str, bool]) -> list[RunJob]:
    """Return the attacks on finished trainings, and those that send weights of their own."""
    jobs = list[RunJob]()
    done = {job.path for job in training_jobs(comparison) if job.is_done}
    for defense in comparison.defenses:
        for seed in comparison.seeds:
            for attack in comparison.attacks:
                cell = Cell.of(attack.label, defense.label, seed)
                path, source = comparison.folder / cell.folder, comparison.folder / cell.training
                name = f"name='{path.name}'"
                if crafting[attack.label]:  # it sends weights of its own: nothing to share
                    own = (*comparison.common, *defense.overrides, *attack.overrides, f"seed={seed}", name)
                    jobs.append(RunJob(path=path, overrides=own))
                elif source in done:
                    own = (*attack.overrides, *_told(comparison.common), name)
                    jobs.append(RunJob(path=path, overrides=own, source=source))
    return jobs


def _told(common: Sequence[str]) -> list[str]:
    """Return who is to be told of every run: a replay takes nothing else of what it was played by."""
    return [text for text in common if text.startswith(("tracking=", "tracking."))]


def attack_choice(entry: object) -> Choice:
    """Read an attack; `knows_defense` among its settings is the threat model's."""
    name, settings = _named(entry, "attack")
    threat = {"knows_defense": "threat.knows_defense"}
    keys = {text: threat.get(text, f"attack.{text}") for text in settings}
    return Choice(
        label=_label(name, settings),
        overrides=(f"attack={name}", *(f"{keys[text]}={value}" for text, value in settings.items())),
    )


def defense_choice(entry: object) -> Choice:
    """Read a defense, or a list of several that act one after another."""
    parts = [_named(part, "defense") for part in (entry if isinstance(entry, list) else [entry])]
    parts = [part for part in parts if part[0] != "none"]
    if not parts:
        return Choice(label="none", overrides=("defense=[]",))
    chosen = ",".join(name for name, _ in parts)
    settings = [
        f"{key_of('defense', name)}.{text}={value}" for name, own in parts for text, value in own.items()
    ]
    label = " + ".join(_label(name, own) for name, own in parts)
    return Choice(label=label, overrides=(f"defense=[{chosen}]", *settings))


def _named(entry: object, kind: str) -> tuple[str, dict[str, Any]]:
    """Read `name` or `{name: {setting: value}}`."""
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, dict) and len(entry) == 1:
        ((name, settings),) = entry.items()
        if isinstance(name, str) and isinstance(settings, dict):
            return name, settings
    raise FedsimError(f"compare: {kind}: expected a name or {{name: {{setting: value}}}}, got {entry!r}")


def _label(name: str, settings: Mapping[str, Any]) -> str:
    words = ", ".join(f"{text} {value}" for text, value in settings.items())
    return f"{name} ({words})" if words else name
