"""Folders that a Wiretap filled, as the source of replays."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedsim.config.compose import parse_text
from fedsim.core.errors import FedsimError
from fedsim.core.types import Observation
from fedsim.lab.experiment import Experiment
from fedsim.models.foreign import fitted
from fedsim.storage.runfolder import RunFolder


@dataclass(frozen=True)
class TappedFolder(RunFolder):
    """A tapped folder, with what the attacker is told beside the messages."""

    disclosed: Mapping[str, Any]

    def observation(self, round: int, client: int) -> Observation:
        """Read a saved observation; what the attacker is told goes before what messages say."""
        return dataclasses.replace(super().observation(round, client), **self.disclosed)


def tapped_folder(folder: RunFolder, config: DictConfig) -> TappedFolder:
    """Return a tapped folder as the config of its replay wants it read."""
    disclosed: Any = OmegaConf.to_container(config.wiretap.disclosed)
    return TappedFolder(folder.path, disclosed)


def source_of(replay: RunFolder) -> RunFolder | None:
    """Return the folder that a replay attacks, with what it was told; None: it is no replay."""
    if (path := replay.source()) is None:
        if replay.kind == "replay":
            raise FedsimError(f"{replay.path}: a replay that does not say of what. Remedy: replay it again.")
        return None
    config = parse_text(replay.config_text())
    return tapped_folder(RunFolder(path), config) if "wiretap" in config else RunFolder(path)


def size_of(folder: RunFolder) -> dict[str, int]:
    """Return how many clients and rounds were observed."""
    seen = folder.observed() or [(1, 0)]
    return {"clients": len({client for _, client in seen}), "rounds": max(round for round, _ in seen)}


def check_fits(experiment: Experiment, source: TappedFolder) -> None:
    """Refuse a model that does not fit the weights, before anything is written."""
    for observation in source.observations():
        fitted(experiment.model, observation)
        break
