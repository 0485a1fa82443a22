"""Contracts on what is installed: constraints fit pyproject.toml, and make installs by them."""

import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WITHOUT_OLD_CPU_BUILDS = {"torch", "torchvision"}


def requirements(texts: list[str]) -> Iterator[Requirement]:
    for requirement in map(Requirement, texts):
        if requirement.name != PROJECT["name"]:
            yield requirement
            continue
        for extra in sorted(requirement.extras):
            yield from requirements(PROJECT["optional-dependencies"][extra])


INSTALLED_BY_MAKE = list(requirements([*PROJECT["dependencies"], f"{PROJECT['name']}[dev]"]))
FOR_DOCS = list(requirements([f"{PROJECT['name']}[docs]"]))
ALL = [*INSTALLED_BY_MAKE, *FOR_DOCS, *requirements([f"{PROJECT['name']}[peers,text]"])]


def pins(file: str) -> dict[str, Version]:
    """Return the version of every name; a line that is anything else than name==version is refused."""
    found: dict[str, Version] = {}
    for line in (ROOT / file).read_text().splitlines():
        if line.startswith("#"):
            continue
        name, equal, text = line.partition("==")
        assert equal, f"{file}: expected name==version, got {line!r}"
        pinned, name = Version(text), canonicalize_name(name, validate=True)
        assert not pinned.local, f"{file}: expected a version of the package index, got {line!r}"
        assert name not in found, f"{file}: {name} is there twice"
        found[name] = pinned
    return found


def bound(requirement: Requirement, operator: str) -> Version:
    found = [specifier.version for specifier in requirement.specifier if specifier.operator == operator]
    assert len(found) == 1, f"{requirement}: expected one bound {operator}, got {found}"
    return Version(found[0])


def test_every_extra_is_looked_at() -> None:
    assert set(PROJECT["optional-dependencies"]) == {"dev", "docs", "sweeps", "tracking", "text", "peers"}


def test_what_others_are_told_to_install_is_this_project() -> None:
    """`fedsim` on the package index is another one."""
    texts = [
        *ROOT.glob("*.md"),
        *(p for top in ("docs", "examples", "conf") for p in (ROOT / top).rglob("*.*")),
    ]
    for path in texts:
        if path.suffix in (".md", ".yaml", ".toml"):
            assert not re.search(r"pip install[^\n]*[ '\"]fedsim(?!-lab)\b", path.read_text()), path
    example = tomllib.loads((ROOT / "examples/flower-quickstart/pyproject.toml").read_text())["project"]
    assert PROJECT["name"] in {Requirement(text).name for text in example["dependencies"]}


@pytest.mark.parametrize("requirement", ALL, ids=str)
def test_a_requirement_has_two_bounds_and_no_address(requirement: Requirement) -> None:
    assert bound(requirement, ">=") < bound(requirement, "<")
    assert requirement.url is None


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-lowest.txt"])
@pytest.mark.parametrize("requirement", INSTALLED_BY_MAKE, ids=str)
def test_constraints_name_what_make_installs_within_its_bounds(requirement: Requirement, file: str) -> None:
    assert pins(file)[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("requirement", FOR_DOCS, ids=str)
def test_constraints_name_what_the_documentation_is_built_with(requirement: Requirement) -> None:
    assert pins("constraints.txt")[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("requirement", INSTALLED_BY_MAKE, ids=str)
def test_the_lowest_constraints_are_the_lower_bounds(requirement: Requirement) -> None:
    name = canonicalize_name(requirement.name)
    tested = pins("constraints.txt")[name] if name in WITHOUT_OLD_CPU_BUILDS else bound(requirement, ">=")
    assert pins("constraints-lowest.txt")[name] == tested


def test_constraints_hold_nothing_that_only_some_platforms_have() -> None:
    assert not {name for name in pins("constraints.txt") if name.startswith(("cuda", "nvidia", "triton"))}


def test_an_environment_that_make_set_up_holds_the_constrained_versions() -> None:
    if not Path(sys.prefix, ".dev").exists():
        pytest.skip("make did not set this environment up: its versions are its owner's choice")
    wanted = pins("constraints.txt")
    for requirement in INSTALLED_BY_MAKE:
        name, got = requirement.name, Version(version(requirement.name)).public
        expected = str(wanted[canonicalize_name(name)])
        assert got == expected, f"{name}: expected {expected}, got {got}. Remedy: make clean test"


@pytest.mark.parametrize("app", [ROOT, ROOT / "examples" / "flower-quickstart"], ids=["fedsim", "example"])
def test_flower_builds_a_bundle_of_the_apps(app: Path, tmp_path: Path) -> None:
    """Copied by what git would give to others; Flower names an app by its folder, too."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate
    from flwr.cli.utils import validate_project_name

    folder = tmp_path / ("fedsim" if app == ROOT else app.name)
    folder.mkdir()
    for name in ("pyproject.toml", "LICENSE", "README.md", "quickstart"):
        if (app / name).is_dir():
            shutil.copytree(app / name, folder / name)
        elif (app / name).exists():
            shutil.copy(app / name, folder)
    validate_project_name(folder.name, "folder")
    _, warnings = load_and_validate(folder / "pyproject.toml", check_module=False)
    assert not warnings
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(folder))) as bundle:
        assert "LICENSE" in bundle.namelist()
        assert app == ROOT or "quickstart/server_app.py" in bundle.namelist()


def test_the_example_says_what_flower_hub_asks_for() -> None:
    example = tomllib.loads((ROOT / "examples/flower-quickstart/pyproject.toml").read_text())
    app = example["tool"]["flwr"]["app"]
    assert app["fab-format-version"] == 1
    own = [Requirement(text) for text in example["project"]["dependencies"]]
    (flower,) = [each for each in own if each.name == "flwr"]
    (ours,) = [each for each in INSTALLED_BY_MAKE if each.name == "flwr"]
    assert app["flwr-version-target"] in flower.specifier
    assert (bound(flower, ">="), bound(flower, "<")) == (bound(ours, ">="), bound(ours, "<"))
    assert (ROOT / "LICENSE").read_text() == (ROOT / "examples/flower-quickstart/LICENSE").read_text()


def commands(environment: Path, target: str, *options: str) -> list[str]:
    """Return the pip commands that make would run for this target."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    command = ["make", "--dry-run", "--directory", str(ROOT), f"VENV={environment}", *options, target]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if " pip install " in line]


def test_make_installs_by_the_constraints_and_for_a_run_the_bare_package(tmp_path: Path) -> None:
    bare, dev = " -c constraints.txt -e .", " -c constraints.txt -e '.[dev]'"
    docs = " -c constraints.txt -e '.[docs]'"
    targets = {"run": (bare,), "test": (bare, dev), "check": (bare, dev), "docs": (bare, docs)}
    for target, wanted in targets.items():
        got = commands(tmp_path, target)
        assert len(got) == len(wanted)
        assert all(line.endswith(end) for line, end in zip(got, wanted, strict=True))


@pytest.mark.parametrize("target", ["run", "test"])
def test_make_sets_up_again_when_requirements_change_and_only_then(tmp_path: Path, target: str) -> None:
    for stamp in (".ready", ".dev"):
        (tmp_path / stamp).touch()
    assert not commands(tmp_path, target)
    for file in ("constraints.txt", "pyproject.toml"):
        assert commands(tmp_path, target, f"--what-if={file}")
