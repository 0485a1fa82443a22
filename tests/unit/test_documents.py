"""What is written about fedsim: links resolve, commands are understood, every key and name is explained."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import click
import pytest
import yaml
from documents import OTHERS, PAGES, README, ROOT, TUTORIAL, anchors, commands, links

import fedsim
from fedsim.commands.cli import fedsim as command_line
from fedsim.config.catalog import GROUPS, names
from fedsim.config.compose import composed, unvaried
from fedsim.config.keys import group_keys, top_level_keys, yamls
from fedsim.lab.compare import comparison_of

WORDS_OF_USERS = re.compile(r"\b(mine|my_\w+|loudest|RUN|FOLDER)\b")  # parts that only their writer has
LONGEST, WIDEST = 150, 120  # of the README
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


@pytest.fixture(scope="module")
def site() -> ModuleType:
    """The hooks of the documentation site, which need no MkDocs to write references."""
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def understood(words: list[str]) -> click.Context:
    """Parse a command line as far as options and arguments go."""
    with command_line.make_context("fedsim", [*words], resilient_parsing=False) as outer:
        name, command, rest = command_line.resolve_command(outer, [*outer._protected_args, *outer.args])
        assert command is not None, words
        return command.make_context(name, rest, parent=outer)


def check_settings(words: list[str]) -> None:
    """Compose the settings of a command."""
    context = understood(words)
    given = [text for text in context.params.get("overrides", ()) if text != "job"]
    if WORDS_OF_USERS.search(" ".join(given)) or "--config-dir" in words:
        return
    if context.info_name == "compare":
        comparison_of(given)
    elif context.info_name in ("run", "prove", "calibrate", "forge"):
        composed([*unvaried(given), "name=test"] if context.params.get("multirun") else given)


def test_the_readme_is_short() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LONGEST
    assert not [line for line in lines if len(line) > WIDEST]


@pytest.mark.parametrize("page", [README, *PAGES, *OTHERS], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_resolve(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} is not there"
        assert not anchor or anchor in anchors(target), f"{path} has no heading #{anchor}"


@pytest.mark.parametrize("page", [README, *PAGES, *OTHERS], ids=lambda page: str(page.relative_to(ROOT)))
def test_one_spelling(page: Path) -> None:
    assert not re.findall(r"\w*[Dd]efence\w*", page.read_text(encoding="utf-8"))


def test_one_spelling_in_code_and_settings_too() -> None:
    rooms = [ROOT / name for name in ("fedsim", "attacks", "defenses", "conf", "benchmarks", "examples")]
    files = [path for room in rooms for path in room.rglob("*") if path.suffix in (".py", ".yaml", ".html")]
    assert len(files) > 300
    other = re.compile("[Dd]efen" + "ce")
    assert not [path for path in files if other.search(path.read_text(encoding="utf-8"))]


def test_every_page_is_in_the_navigation_of_the_site(site: ModuleType) -> None:
    def leaves(node: object) -> list[str]:
        if isinstance(node, str):
            return [node]
        inside = node.values() if isinstance(node, dict) else node
        return [leaf for each in inside for leaf in leaves(each)]  # type: ignore[attr-defined]

    listed = leaves(SITE["nav"])
    outside = {place for place in site.OUTSIDE.values() if place.endswith(".md")} - {"index.md"}
    own = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES}
    assert sorted(listed) == sorted(own | outside)


def test_the_site_takes_nothing_from_elsewhere() -> None:
    assert SITE["theme"]["font"] is False
    assert not [plugin for plugin in SITE["plugins"] if plugin in ("offline", "social", "privacy")]
    named = [SITE.get(name, []) for name in ("extra_css", "extra_javascript")]
    assert all((ROOT / "docs" / path).is_file() for paths in named for path in paths)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_the_documents_are_understood(page: Path) -> None:
    for words in commands(page):
        if words[0] != "--help":
            understood(words)


def test_settings_of_the_readme_compose() -> None:
    found = commands(README)
    assert len(found) > 8
    for words in found:
        check_settings(words)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_of_the_documents_compose(page: Path) -> None:
    for words in commands(page):
        if words[0] != "--help":
            check_settings(words)


def test_a_misspelt_command_or_setting_would_be_noticed() -> None:
    with pytest.raises(fedsim.FedsimError):
        check_settings(["atack=ilrg"])
    with pytest.raises(fedsim.FedsimError):
        check_settings(["comparre", "attack=[ilrg]"])


def test_every_config_key_is_in_the_reference_with_type_default_and_meaning(site: ModuleType) -> None:
    text = site.with_references((ROOT / "docs" / "reference" / "config.md").read_text())
    keys = [*top_level_keys(), *(key for group, name in yamls() for key in group_keys(group, name))]
    assert len(keys) > 500
    for key in keys:
        assert key.meaning, f"{key.name}: no meaning. Remedy: a comment beside it in its yaml."
        assert key.type, f"{key.name}: no type. Remedy: an annotation in the constructor."
        assert f"| `{key.name}` | `{key.default}` |".replace("\\|", "|") in text.replace("\\|", "|")


def test_keys_are_those_of_the_config_itself() -> None:
    def paths(node: object, above: str = "") -> set[str]:
        if not isinstance(node, dict) or not node:
            return {above}
        return {path for name, value in node.items() for path in paths(value, f"{above}.{name}".strip("."))}

    def keys(group: str, name: str) -> set[str]:
        text = (ROOT / "conf" / group / f"{name}.yaml").read_text()
        found = paths({name: value for name, value in yaml.safe_load(text).items() if name != "defaults"})
        prefix = re.search(r"@package (\S+)", text)
        return {f"{prefix[1] if prefix else group}.{path}" for path in found if "_target_" not in path}

    for group, name in [
        ("attack", "ilrg"),
        ("defense", "noise"),
        ("federation", "fedsgd"),
        ("audit", "proof_of_learning"),
    ]:
        assert {key.name for key in group_keys(group, name)} == keys(group, name)


@pytest.mark.parametrize(
    ("group", "name", "key", "type_", "default", "allowed"),
    [
        ("defense", "noise", "defense.noise.distribution", "text", "gaussian", "gaussian or laplace"),
        (
            "federation",
            "fedavg",
            "federation.local_steps",
            "whole number",
            "5",
            "a whole number of at least 1",
        ),
        ("attack", "ig", "attack.optimiser.sign", "text", "hard", "one of none, hard, soft"),
        ("attack", "ig", "attack.priors.0.weight", "number", "0.001", "a number of at least 0"),
        ("attack", "stein", "attack.order", "whole number or null", "null", "null or 3 or 4"),
        ("audit", "proof_of_learning", "audit.domain", "text", "uint8", "one of uint8, box, real"),
    ],
)
def test_a_key_says_what_the_constructor_checks(
    group: str, name: str, key: str, type_: str, default: str, allowed: str
) -> None:
    (found,) = [each for each in group_keys(group, name) if each.name == key]
    assert (found.type, found.default, found.allowed) == (type_, default, allowed)


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "python.md").read_text()
    assert sorted(re.findall(r"^::: fedsim\.(\w+)$", text, re.MULTILINE)) == sorted(fedsim.__all__)


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in ("experiment", "tracking")])
def test_the_guide_names_every_choice(group: str) -> None:
    (row,) = re.findall(rf"^\| `{group}` \| (.*) \|$", (ROOT / "docs" / "guide.md").read_text(), re.MULTILINE)
    assert set(names(group)) <= set(re.findall(r"`(\w+)`", row))


def test_every_command_and_experiment_is_in_the_reference(site: ModuleType) -> None:
    text = site.command_reference()
    for name in command_line.list_commands(click.Context(command_line)):
        assert f"## fedsim {name}\n" in text
    papers = "".join(site.with_references(page.read_text()) for page in PAGES if page.parent.name == "papers")
    for path in (ROOT / "conf" / "experiment").glob("*.yaml"):
        if path.stem.startswith(("ilrg_", "stein_", "pol_", "forging_", "dlg_", "ig_", "peeling_")):
            assert f"| `{path.stem}` |" in papers


def test_every_metric_is_defined() -> None:
    defined = re.findall(r"`(\w+)`", (ROOT / "docs" / "metrics.md").read_text())
    assert {path.stem for path in (ROOT / "conf" / "metric").glob("*.yaml")} <= set(defined)


def test_the_tutorial_is_there() -> None:
    assert len(TUTORIAL) == 6
