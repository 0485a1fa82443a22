"""A run folder from elsewhere runs no code but ours, unless the user names it."""

import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from fedsim.config.catalog import config_dir
from fedsim.config.compose import parse_text
from fedsim.config.trust import check_trusted
from fedsim.core.errors import FedsimError
from fedsim.storage.runfolder import RunFolder

EVIL = (
    {
        "model": {
            "_target_": "fedsim.models.foreign.user_model",
            "name": "os.system",
            "arguments": {"command": "x"},
        }
    },
    {"model": {"_target_": "os.system", "command": "touch owned"}},
    {"attack": {"_target_": "fedsim.core.environment.shutil.rmtree", "path": "/"}},  # ours only imports it
    {
        "attack": {"_target_": "fedsim.storage.files.write_whole", "path": "x", "content": "y"}
    },  # ours, and no part of a run
    {"attack": {"_target_": "fedsim.attacks.privacy.labels.ilrg.torch.load", "f": "x"}},
    {"attack": {"_target_": "builtins.eval"}},
    {"metric": {"a": {"b": [{"_target_": "subprocess.run", "args": "x"}]}}},
    {"audit": {"_target_": 7}},
)


def edited(folder: RunFolder, changes: object) -> None:
    """Store another config, as somebody would who makes a folder for others to replay."""
    config = OmegaConf.merge(OmegaConf.create(folder.config_text()), changes)
    folder.storage.write_text("config.yaml", OmegaConf.to_yaml(config))


@pytest.mark.parametrize(
    "changes",
    [*EVIL[:3], *(pytest.param(changes, marks=pytest.mark.slow) for changes in EVIL[3:])],
    ids=lambda changes: next(iter(changes)),
)
def test_no_command_runs_what_a_folder_names(play_small, command, tmp_path: Path, changes) -> None:
    folder = play_small(folder="base")
    folder.write_summary({"status": "interrupted"})
    edited(folder, changes)
    for name in ("replay", "resume"):
        done = command(name, "base", cwd=tmp_path)
        assert done.returncode == 1
        assert "wants to run" in done.stderr
        assert "Remedy, if you know and trust it: allow=" in done.stderr
    assert not (tmp_path / "owned").exists()
    assert not (tmp_path / "runs").exists()


MINE = """
import os
from fedsim.attacks.privacy.labels.ilrg import ILRG

class Mine(ILRG):
    pass
"""


@pytest.mark.slow
def test_what_the_user_names_runs(play_small, command, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    folder = play_small("attack._target_=mine.Mine", folder="base")
    folder.write_summary({"status": "interrupted"})
    assert "wants to run 'mine.Mine'" in command("resume", "base", cwd=tmp_path).stderr
    assert "wants to run 'mine.Mine'" in command("resume", "base", "allow=min", cwd=tmp_path).stderr
    assert command("resume", "base", "allow=mine", cwd=tmp_path).returncode == 0
    named = command("replay", "base", "attack._target_=mine.Mine", "hydra.run.dir=a", cwd=tmp_path)
    assert named.returncode == 0, named.stderr
    assert command("replay", "base", "attack=ilrg", "hydra.run.dir=b", cwd=tmp_path).returncode == 0
    edited(folder, {"attack": {"_target_": "mine.os.system"}})  # permitted is what the module defines itself
    folder.write_summary({"status": "interrupted"})
    assert "wants to run 'mine.os.system'" in command("resume", "base", "allow=mine", cwd=tmp_path).stderr
    sys.modules.pop("mine", None)


def test_every_config_of_ours_is_trusted() -> None:
    for path in config_dir().rglob("*.yaml"):
        config = OmegaConf.load(path)
        assert isinstance(config, DictConfig)
        telling = path.parent.name == "tracking" and path.stem == "mlflow"  # others: test_tracking.py
        check_trusted(
            OmegaConf.create(OmegaConf.to_container(config)), ["tracking=mlflow"] if telling else ()
        )
    parts = OmegaConf.create(
        {"attack": {"labels": {"_target_": "fedsim.attacks.privacy.matching.labels.Given"}}}
    )
    assert isinstance(parts, DictConfig)
    check_trusted(parts, ())


@pytest.mark.parametrize(
    "text",
    [
        "a: ${oc.env:HOME}",
        "a: &x [1]\nb: [*x, *x]",
        "- 1",
        "{",
        "a: ???",
        "\x00",
        "a: !!python/object/apply:os.system [x]",
    ],
)
def test_stored_configs_are_plain(text: str) -> None:
    with pytest.raises(FedsimError, match=r"config\.yaml"):
        parse_text(text)


def test_a_name_leads_nowhere_else(play_small, command, tmp_path: Path) -> None:
    folder = play_small(folder="base")
    edited(folder, {"choices": {"model": "../../../owned"}})
    done = command("replay", "base", "attack=idlg", cwd=tmp_path)
    assert done.returncode == 1
    assert "name: expected a word for a folder, without a slash" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["base"]
