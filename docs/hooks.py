"""What MkDocs does beside its own: generated references, and files that lie outside docs/."""

import re
import sys
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any

import click

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from fedsim.commands.cli import fedsim as commands  # noqa: E402
from fedsim.config.catalog import GROUPS, entries  # noqa: E402
from fedsim.config.keys import SWEEPS, Key, group_keys, top_level_keys, yamls  # noqa: E402

OUTSIDE = {  # in the repository: on the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/CONTRIBUTING.md",
    "CHANGELOG.md": "project/CHANGELOG.md",
    "examples/flower-quickstart/README.md": "project/examples/flower-quickstart.md",
    "examples/flower-finetuning/README.md": "project/examples/flower-finetuning.md",
    "examples/plugin/README.md": "project/examples/plugin.md",
    "examples/attack_your_model.ipynb": "project/examples/attack_your_model.ipynb",
}
FOLDERS = {str(Path(path).parent): path for path in OUTSIDE if path.endswith("/README.md")}
MARK = re.compile(r"^<!-- generated: (\w+)((?: \w+)*) -->$", re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def on_files(files: Any, config: Any) -> Any:
    """Add the files that lie outside docs/."""
    from mkdocs.structure.files import File

    for path, place in OUTSIDE.items():
        if place != "index.md":
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in what is generated, and turn links into the repository to where their target is on the site."""
    return LINK.sub(lambda link: _on_the_site(link, page.file.src_uri), with_references(markdown))


def with_references(markdown: str) -> str:
    """Put generated text in the place of its marks."""
    makers = {
        "config": config_reference,
        "commands": command_reference,
        "choices": choices_table,
        "experiments": experiments_table,
    }
    return MARK.sub(lambda mark: makers[mark[1]](*mark[2].split()), markdown)


def config_reference() -> str:
    """Return tables of every config key."""
    parts = ["## Without a group\n", _table(top_level_keys())]
    for group in (*(name for name in GROUPS if name != "experiment"), *SWEEPS):
        said = {entry.name: entry for entry in entries(group)}
        parts.append(f"\n## {group}\n")
        for _, name in (pair for pair in yamls() if pair[0] == group):
            entry = said[name]
            paper = f" Paper: {entry.paper.rstrip('.')}." if entry.paper else ""
            parts.append(f"\n### {group}={name}\n\n{_plain(entry.summary)}{_plain(paper)}\n")
            keys = group_keys(group, name)
            parts.append(_table(keys) if keys else "No settings.\n")
    return "\n".join(parts)


def _table(keys: list[Key]) -> str:
    lines = ["| key | default | type, allowed | meaning |", "|---|---|---|---|"]
    for key in keys:
        cells = (f"`{key.name}`", f"`{key.default}`", _plain(key.allowed or key.type), _plain(key.meaning))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Keep markdown and HTML from reading anything into a text."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<\[*_])", r"\\\1", part) for part in parts)


def command_reference() -> str:
    """Return the help of every command."""
    context = click.Context(commands, info_name="fedsim", terminal_width=100)
    parts = [f"## fedsim\n\n```text\n{commands.get_help(context)}\n```\n"]
    for name in commands.list_commands(context):
        command = commands.get_command(context, name)
        assert command is not None
        if not command.hidden:
            inner = click.Context(command, info_name=name, parent=context, terminal_width=100)
            parts.append(f"## fedsim {name}\n\n```text\n{command.get_help(inner)}\n```\n")
    return "\n".join(parts)


def choices_table() -> str:
    """Return every choice of every group, with its line in the catalogue."""
    parts = []
    for group in GROUPS:
        parts.append(f"\n### {group}\n\n| name | what it is | paper |\n|---|---|---|")
        for entry in entries(group):
            cells = (f"`{entry.name}`", _plain(entry.summary), _plain(entry.paper))
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(parts) + "\n"


def experiments_table(*beginnings: str) -> str:
    """Return the experiments of a paper: what they are, what is expected, and which figures are checked."""
    lines = ["| experiment | what | expected | figures that are checked | minutes |", "|---|---|---|---|---|"]
    for entry in (entry for entry in entries("experiment") if entry.name.startswith(beginnings)):
        figures = "<br>".join(_plain(str(figure)) for figure in entry.expected)
        cells = (f"`{entry.name}`", _plain(entry.summary), _plain(entry.words), figures, f"{entry.minutes:g}")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return (
        "\n".join(lines)
        + "\n\nRun one: `fedsim experiment=NAME`. Check it: `fedsim check experiment=NAME`.\n"
    )


def _on_the_site(link: re.Match[str], page: str) -> str:
    """Turn one link of a page; those within docs/, and to other sites, stay."""
    target, anchor = link[2], link[3] or ""
    if re.match(r"\w+:", target):
        return link[0]
    source = next((path for path, place in OUTSIDE.items() if page == place != "index.md"), f"docs/{page}")
    path = normpath(f"{Path(source).parent}/{target}")
    path = FOLDERS.get(path, path)
    place = OUTSIDE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
    if place is None:
        raise ValueError(f"{page}: the link to {target} leaves the site. Remedy: name it in OUTSIDE.")
    return f"{link[1]}{relpath(place, str(Path(page).parent))}{anchor}{link[4]}"
