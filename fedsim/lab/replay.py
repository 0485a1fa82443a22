"""A replay of any folder with observations: an earlier run's, or what a Wiretap kept."""

from collections.abc import Sequence
from pathlib import Path

from fedsim.config import build
from fedsim.config.replay import compose_replay, compose_tapped
from fedsim.config.trust import check_trusted
from fedsim.lab.experiment import Experiment
from fedsim.lab.tapped import check_fits, size_of, tapped_folder
from fedsim.storage.runfolder import RunFolder


def prepare_replay(
    source: RunFolder, overrides: Sequence[str], allowed: Sequence[str] = ()
) -> tuple[Experiment, RunFolder, Path]:
    """Return what to replay, from which folder, into which; allowed: modules that its config may name."""
    if source.kind != "wiretap":
        found = compose_replay(source.config_text(), overrides)
        check_trusted(found.config, overrides, allowed)
        return build.experiment(found.config), source, found.folder
    found = compose_tapped(source.config_text(), overrides, **size_of(source))
    check_trusted(found.config, overrides, allowed)
    experiment, tapped = build.experiment(found.config), tapped_folder(source, found.config)
    check_fits(experiment, tapped)
    return experiment, tapped, found.folder
