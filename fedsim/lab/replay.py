"""A replay of any folder with observations: an earlier run's, or what a Wiretap kept."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from fedsim.config import build
from fedsim.config.compose import Composed
from fedsim.config.replay import compose_replay, compose_tapped
from fedsim.config.trust import check_trusted
from fedsim.lab.experiment import Experiment
from fedsim.lab.tapped import check_fits, size_of, tapped_folder
from fedsim.storage.runfolder import RunFolder


def replay_settings(source: RunFolder, overrides: Sequence[str]) -> Composed:
    """Compose the replay of a run, or of what a Wiretap kept."""
    if source.kind == "wiretap":
        return compose_tapped(source.config_text(), overrides, **size_of(source))
    return compose_replay(source.config_text(), overrides)


def replayed(source: RunFolder, experiment: Experiment, config: DictConfig) -> RunFolder:
    """Return a folder as the config of its replay wants it read, if the model fits it."""
    if source.kind != "wiretap":
        return source
    tapped = tapped_folder(source, config)
    check_fits(experiment, tapped)
    return tapped


def prepare_replay(
    source: RunFolder, overrides: Sequence[str], allowed: Sequence[str] = ()
) -> tuple[Experiment, RunFolder, Path]:
    """Return what to replay, from which folder, into which; allowed: modules that its config may name."""
    found = replay_settings(source, overrides)
    check_trusted(found.config, overrides, allowed)
    experiment = build.experiment(found.config)
    return experiment, replayed(source, experiment, found.config), found.folder
