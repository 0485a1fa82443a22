"""From overrides to a plain config, by Hydra: the only place that composes."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from fedsim.config.catalog import GROUPS, config_dir, names
from fedsim.config.plugins import LISTED, config_folders, is_import_path, key_of, node_of
from fedsim.core.errors import FedsimError, suggestion
from fedsim.core.expectation import Expectation, read_expectations
from fedsim.core.imports import reach_working_folder
from fedsim.core.yamls import read_yaml

ABOUT = ("kind", "minutes", "expected")  # of an experiment: no settings of the runs that it makes
PATHS = ("root", "path", "checkpoint", "keys", "root_certificates")  # settings that name files


@dataclass(frozen=True, kw_only=True)
class Composed:
    """A config of plain values, what it wants to be, where its results go, and what is to be swept."""

    kind: str  # run, sweep, comparison, game or calibration
    config: DictConfig
    folder: Path
    sweep_folder: Path
    swept: Mapping[str, str]  # key -> values, as on a command line
    expected: tuple[Expectation, ...] = ()  # figures, for `fedsim check`


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """Compose a config as the command line would."""
    return composed(overrides).config


def composed(overrides: Sequence[str]) -> Composed:
    """Compose a config, and say where its results go."""
    found = compose_hydra(overrides)
    swept = found.hydra.sweeper.get("params") or {}
    return Composed(
        kind=str(found.kind),
        config=plain(found),
        folder=Path(found.hydra.run.dir),
        sweep_folder=Path(found.hydra.sweep.dir),
        swept={str(key): str(value) for key, value in swept.items()},
        expected=_expected(found),
    )


def _expected(config: DictConfig) -> tuple[Expectation, ...]:
    listed: Any = config.expected
    plain_list = OmegaConf.to_container(listed) if OmegaConf.is_config(listed) else listed
    return read_expectations(plain_list, f"experiment={config.hydra.runtime.choices.get('experiment')}")


def parsed(overrides: Sequence[str]) -> list[Override]:
    """Read overrides as Hydra does."""
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        foreign = next((text for text in overrides if not text.isascii() and '"' not in text), None)
        if foreign is None:
            raise FedsimError(str(error)) from error
        name, _, value = foreign.partition("=")
        raise FedsimError(
            f"{foreign}: letters beyond a to z want quotes. Remedy: '{name}=\"{value}\"'."
        ) from error


def key(override: Override) -> str:
    """Return which setting an override is about, without the marks of adding and deleting."""
    return str(override.key_or_group)


def with_defaults(overrides: Sequence[str], defaults: Sequence[str]) -> list[str]:
    """Put defaults before overrides, those that they do not name themselves."""
    named = {key(override) for override in parsed(overrides)}
    return [
        text for text, default in zip(defaults, parsed(defaults), strict=True) if key(default) not in named
    ] + [*overrides]


def unvaried(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that name one value."""
    return [str(override.input_line) for override in parsed(overrides) if not override.is_sweep_override()]


def combinations(overrides: Sequence[str], swept: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return a label and overrides for every combination of the values that overrides or `swept` list."""
    given, fixed = parsed(overrides), unvaried(overrides)
    named = {key(override) for override in given}
    more = parsed([f"{name}={values}" for name, values in swept.items() if name not in named])
    varied = [*more, *(override for override in given if override.is_sweep_override())]
    listed = [
        [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
        if o.is_sweep_override()
        else [str(o.input_line)]
        for o in varied
    ]
    return [(", ".join(chosen), [*fixed, *chosen]) for chosen in product(*listed)]


def compose_hydra(overrides: Sequence[str]) -> DictConfig:
    """Compose a config with Hydra's own settings in it."""
    given = parsed(overrides)
    for override in given:
        if (top := key(override).partition("/")[0].partition(".")[0]) not in known_keys():
            raise FedsimError(
                f"{override.input_line}: no setting {top!r}.{suggestion(top, known_keys())} "
                "Remedy: fedsim --cfg shows them all."
            )
    reach_working_folder()
    _register_classes(given)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            config = hydra_compose("config", [*search_override(), *overrides], return_hydra_config=True)
    except MissingConfigException as error:
        raise FedsimError(_missing(error)) from error
    except (HydraException, OmegaConfBaseException) as error:
        said = _no_setting(error.__cause__) or "\n".join(str(s) for s in (error, error.__cause__) if s)
        raise FedsimError(said) from error
    HydraConfig.instance().set_config(config)
    _drop_orphans(config, given)
    if unknown := [str(name) for name in config if name not in known_keys()]:
        raise FedsimError(
            f"{unknown[0]}: no such setting, and a yaml sets it.{suggestion(unknown[0], known_keys())}"
        )
    return config


def quoted(text: str) -> str:
    """Return a text as Hydra's grammar takes any text."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def search_override() -> list[str]:
    """Return the override that lets Hydra look into others' folders of yamls, too."""
    folders = [quoted(f"file://{folder}") for folder in config_folders()]
    return [f"hydra.searchpath=[{','.join(folders)}]"] if folders else []


@functools.cache
def known_keys() -> frozenset[str]:
    """Return the settings at the top of a config."""
    own = read_yaml((config_dir() / "config.yaml").read_text(encoding="utf-8"))
    return frozenset({*own, *GROUPS, "hydra"} - {"defaults"})


def _register_classes(overrides: Iterable[Override]) -> None:
    """Let Hydra find module.Class where it looks for yamls."""
    for override in overrides:
        if (group := key(override)) not in GROUPS:
            continue
        for name in _names_in(override.value()):
            if is_import_path(name) and name not in names(group):
                ConfigStore.instance().store(
                    group=group, name=name, node=node_of(group, name), package=key_of(group, name)
                )


def _names_in(value: object) -> Iterator[str]:
    """Yield the names of an override's value: one, a list, or a sweep over either."""
    if isinstance(value, ChoiceSweep):
        value = value.list
    if isinstance(value, QuotedString):
        value = value.text
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _names_in(item)


def _missing(error: MissingConfigException) -> str:
    """Say which yaml is missing, and which was perhaps meant."""
    group, _, name = str(error.missing_cfg_file or "").rpartition("/")
    if group not in GROUPS:
        return str(error)
    return f"{group}={name}: no such yaml.{suggestion(name, names(group))} Remedy: fedsim list {group}."


def _no_setting(cause: object) -> str:
    """Say which setting there is none of, and which was perhaps meant; empty: it is about something else."""
    parent = getattr(cause, "parent_node", None)
    if not isinstance(cause, ConfigAttributeError | ConfigKeyError) or not isinstance(parent, DictConfig):
        return ""
    known, full = [str(name) for name in parent if not str(name).startswith("_")], str(cause.full_key)
    near = suggestion(full.rpartition(".")[2], known)
    there = f"expected one of {', '.join(known)}" if known else "there is none to set"
    return f"{full}: no such setting, {there}.{near} Remedy: fedsim --cfg shows them all."


def _drop_orphans(config: DictConfig, overrides: Iterable[Override]) -> None:
    """Forget an experiment's settings of members that the command line did not choose."""
    asked = {key(override) for override in overrides}
    for group in asked & set(LISTED):
        with open_dict(config):
            for name in list(config[group] or {}):
                bare = isinstance(config[group][name], DictConfig) and "_target_" not in config[group][name]
                if bare and not any(other.startswith(f"{group}.{name}") for other in asked):
                    del config[group][name]


def plain(config: DictConfig) -> DictConfig:
    """Resolve a config, take out Hydra's own settings and an experiment's, and make its paths absolute."""
    try:
        resolved = OmegaConf.to_container(_own(config), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise FedsimError(f"config: {error}. Remedy: set that key on the command line.") from error
    made = OmegaConf.create(resolved)
    assert isinstance(made, DictConfig)
    _make_paths_absolute(made)  # a replay may start from another folder
    if "choices" in made and "hydra" in config:
        note_asked(made, config.hydra.overrides.task)
    return made


def note_asked(config: DictConfig, overrides: Iterable[str]) -> None:
    """Keep what was asked for, for the command that a report shows; where it is no plain text, nothing."""
    asked = [text for text in overrides if not text.startswith(("jobs=", "hydra."))]  # how and where
    config.choices.asked = [] if any("${" in text for text in asked) else asked


def _make_paths_absolute(node: DictConfig) -> None:
    for name, value in node.items():
        if isinstance(value, DictConfig):
            _make_paths_absolute(value)
        elif name in PATHS and isinstance(value, str):
            node[name] = str(Path(value).expanduser().resolve())


def as_text(config: DictConfig) -> str:
    """Return a config as yaml, without Hydra's own settings; missing values stay marked."""
    return OmegaConf.to_yaml(OmegaConf.create(OmegaConf.to_container(_own(config), resolve=True)))


def _own(config: DictConfig) -> DictConfig:
    return OmegaConf.masked_copy(config, [str(name) for name in config if name not in ("hydra", *ABOUT)])


def parse_text(text: str) -> DictConfig:
    """Read a run's config: plain values, as they were resolved, with no aliases to multiply them."""
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise FedsimError("config.yaml: expected plain values, got an alias")
        config: Any = OmegaConf.create(text)
        if isinstance(config, DictConfig):
            OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
            for name in ("format", "kind", "source"):  # of the run folder that it stood in
                config.pop(name, None)
            if "${" not in text:
                return config
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise FedsimError(f"config.yaml: not readable ({error})") from error
    raise FedsimError("config.yaml: expected the plain settings of a run, got something else")
