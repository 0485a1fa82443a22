"""A package of a user's own: built, installed beside fedsim, and checked by its own tests."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import forked
import pytest
from small_settings import SMALL

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package is installed into; built from a copy, as building leaves files behind."""
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(PLUGIN, folder / "source")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder / "site"))
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *offline, str(source)], check=True)
    return folder / "site"


def python(site: Path, *arguments: str) -> str:
    """Run Python where the package is installed and its source is not."""
    surroundings = os.environ | {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=site.parent, env=surroundings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_entry_point_names_a_package_that_holds_its_yamls(installed: Path) -> None:
    (found,) = distributions(path=[str(installed)])
    (entry,) = found.entry_points.select(group="fedsim.plugins")
    assert entry.value == "fedsim_example"
    conf = installed / "fedsim_example" / "conf"
    assert {str(path.relative_to(conf)) for path in conf.rglob("*.yaml")} == {
        "attack/weighted_mean.yaml",
        "defense/signs.yaml",
        "metric/brightness.yaml",
    }


@pytest.mark.slow
def test_its_own_tests_pass_where_it_is_installed(installed: Path) -> None:
    said = python(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PLUGIN / "tests"))
    assert "7 passed" in said


@pytest.mark.slow
def test_its_parts_are_built_by_module_and_class(installed: Path, monkeypatch) -> None:
    (installed.parent / "built.py").write_text(
        "import fedsim\n"
        "attack = fedsim.attack('fedsim_example.weighted_mean.WeightedMean', units=3)\n"
        "defense = fedsim.defense('fedsim_example.signs.Signs')\n"
        "print(attack.units, defense.bits)"
    )
    monkeypatch.syspath_prepend(installed)
    assert forked.script("built.py", cwd=installed.parent).stdout.split() == ["3", "1.0"]


@pytest.mark.slow
def test_its_yamls_join_fedsims_own(installed: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(installed)
    assert "weighted_mean" in forked.fedsim("list", "attack", cwd=installed.parent).stdout
    chosen = (
        "attack=weighted_mean",
        "defense=[signs]",
        "metric=[psnr,brightness]",
        "defense.signs.scaled=false",
    )
    done = forked.fedsim(*chosen, *SMALL[:-2], "hydra.run.dir=run", cwd=installed.parent)
    assert done.returncode == 0, done.stderr
    assert "brightness" in (installed.parent / "run" / "summary.json").read_text()
