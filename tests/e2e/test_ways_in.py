"""The ways in beside fedsim's own yamls: folders of one's own, new parts, completion, named experiments."""

import runpy
from pathlib import Path

import pytest
import yaml
from small_settings import SOFTMAX

from fedsim.commands.completion import completions
from fedsim.config.compose import compose
from fedsim.core.errors import FedsimError

ROUND = (*SOFTMAX, "federation.rounds=1", "federation.clients=2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of one's own yamls: a preset of an attack, and an experiment with it."""
    for name, text in {
        "attack/gentle.yaml": "# iLRG with other settings\n"
        "_target_: fedsim.attacks.privacy.labels.ilrg.ILRG\nmax_amplification: 3\n",
        "experiment/mine.yaml": "# @package _global_\n# My table\n# Run: fedsim experiment=mine (a second)\n"
        "defaults:\n  - override /attack: gentle\nkind: sweep\nfederation:\n  rounds: 1\n"
        "hydra:\n  sweeper:\n    params:\n      federation.batch_size: 4,6\n",
    }.items():
        (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / name).write_text(text)
    return tmp_path / "own"


def test_a_folder_of_yamls_is_found_by_every_command(folder, tmp_path, command, monkeypatch) -> None:
    monkeypatch.setenv("FEDSIM_CONF", str(folder))
    assert "iLRG with other settings" in command("list", "attack", cwd=tmp_path).stdout
    assert "fedsim experiment=mine (a second)" in command("list", "experiment", cwd=tmp_path).stdout
    played = command("attack=gentle", *ROUND, "hydra.run.dir=run", cwd=tmp_path)
    assert played.returncode == 0, played.stderr
    assert "max_amplification: 3" in (tmp_path / "run" / "config.yaml").read_text()
    assert command("replay", "run", "hydra.run.dir=same", cwd=tmp_path).returncode == 0
    named = [
        setting for setting in ROUND if not setting.startswith(("federation.rounds", "federation.batch"))
    ]
    swept = command("experiment=mine", *named, "hydra.sweep.dir=sweep", cwd=tmp_path)
    assert swept.returncode == 0, swept.stderr
    assert (tmp_path / "sweep" / "sweep.csv").read_text().count(",complete") == 2
    stamp = next((tmp_path / "sweep").glob("0_*/summary.json")).stat().st_mtime_ns
    again = command("experiment=mine", *named, "jobs=2", "hydra.sweep.dir=sweep", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert next((tmp_path / "sweep").glob("0_*/summary.json")).stat().st_mtime_ns == stamp
    other = command("experiment=mine", *named, "seed=7", "hydra.sweep.dir=sweep", cwd=tmp_path)
    assert "holds a sweep with other settings" in other.stderr
    none = command("experiment=mine", *named, "jobs=0", "hydra.sweep.dir=other", cwd=tmp_path)
    assert "jobs: expected a whole number of at least 1, got 0" in none.stderr


def test_a_folder_may_be_named_on_the_command_line(folder, tmp_path, command, monkeypatch) -> None:
    monkeypatch.setenv("FEDSIM_CONF", "")  # so that it is as before when the test ends
    assert "no such yaml" in command("attack=gentle", "--cfg", cwd=tmp_path).stderr
    shown = command("--config-dir", str(folder), "attack=gentle", "--cfg", cwd=tmp_path)
    assert "max_amplification: 3" in shown.stdout
    monkeypatch.setenv("FEDSIM_CONF", str(tmp_path / "none"))
    assert "expected a folder of yamls" in command("--cfg", cwd=tmp_path).stderr


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "kind", ["attack", pytest.param("defense", marks=SLOW), pytest.param("metric", marks=SLOW)]
)
def test_what_is_begun_with_new_works_at_once(kind: str, tmp_path: Path, command, monkeypatch) -> None:
    monkeypatch.setenv("FEDSIM_CONF", "")
    begun = command("new", kind, f"my_{kind}", cwd=tmp_path)
    assert begun.returncode == 0, begun.stderr
    chosen = f"{kind}=my_{kind}" if kind == "attack" else f"{kind}=[my_{kind}]"
    assert f"fedsim --config-dir conf {chosen}" in begun.stdout
    played = command("--config-dir", "conf", chosen, *ROUND, "hydra.run.dir=run", cwd=tmp_path)
    assert played.returncode == 0, played.stderr
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_path(f"test_my_{kind}.py")[f"test_my_{kind}_keeps_the_contract"]()
    assert "is there already" in command("new", kind, f"my_{kind}", cwd=tmp_path).stderr


def test_a_shell_completes_commands_groups_and_names() -> None:
    assert completions(["re"], "re") == ["replay", "resume", "report"]
    assert "attack=" in completions(["at"], "at")
    assert completions(["attack=il"], "attack=il")[0] == "attack=ilrg"
    assert "defense=[clip,noise" in completions(["defense=[clip,no"], "defense=[clip,no")
    assert completions(["list", "mo"], "mo") == ["model"]


def test_an_experiments_settings_go_with_the_members_that_they_are_of() -> None:
    honest = compose(["experiment=pol_audit", "client=[]"])
    assert not honest.client
    assert compose(["experiment=pol_audit"]).client


def test_a_yaml_with_a_misspelt_key_is_refused(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\nfederatoin:\n  rounds: 2\n"
    (tmp_path / "experiment" / "wrong.yaml").write_text(text)
    assert yaml.safe_load(text)
    monkeypatch.setenv("FEDSIM_CONF", str(tmp_path))
    with pytest.raises(FedsimError, match=r"federatoin: no such setting.*Did you mean federation"):
        compose(["experiment=wrong"])
