"""`fedsim completion`: a shell that knows commands, groups and names. Answers without heavy libraries."""

from pathlib import Path

import click

OFFERED = 30  # run folders, the latest ones
SCRIPTS = {
    "bash": """\
_fedsim() {
  local line="${COMP_LINE:0:$COMP_POINT}" word
  word="${line##* }"
  local prefix=""
  [[ $word == *[=:]* ]] && prefix="${word%"${word##*[=:]}"}"  # what bash takes for words of their own
  local IFS=$'\\n'
  COMPREPLY=($(fedsim completion --word "$word" -- "$line" 2>/dev/null))
  COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2>/dev/null
}
complete -o default -F _fedsim fedsim
""",
    "zsh": """\
_fedsim() {
  local -a found
  found=("${(@f)$(fedsim completion --word "${words[CURRENT]}" -- "${words[1,CURRENT]}" 2>/dev/null)}")
  compadd -S '' -- $found
}
compdef _fedsim fedsim
""",
    "fish": """\
complete -c fedsim -f -a '(fedsim completion --word (commandline -ct) -- (commandline -cp) 2>/dev/null)'
""",
}


@click.command("completion", short_help="let a shell complete fedsim")
@click.argument("shell", required=False, default="")
@click.option("--word", default=None, hidden=True, help="Print what completes this word of SHELL, a line.")
def command(shell: str, word: str | None) -> None:
    """Print the lines that let SHELL (bash, zsh, fish) complete fedsim: eval "$(fedsim completion bash)"."""
    if word is not None:
        print("\n".join(completions(shell.split()[1:], word)))
        return
    if shell not in SCRIPTS:
        raise click.BadArgumentUsage(f"expected {', '.join(SCRIPTS)}, got {shell or 'nothing'}.")
    print(SCRIPTS[shell], end="")


def completions(words: list[str], word: str) -> list[str]:
    """Return what a word may become: a command, a setting's key, or one of a group's names."""
    from fedsim.commands.cli import COMMANDS
    from fedsim.config.catalog import GROUPS, names

    before = words[:-1] if words and words[-1] == word else words
    group, equals, typed = word.partition("=")
    if equals and group in GROUPS:
        start, bracket, last = typed.rpartition(",") if "," in typed else typed.rpartition("[")
        return [f"{group}={start}{bracket}{name}" for name in names(group) if name.startswith(last)]
    if before and before[0] == "list":
        return [name for name in GROUPS if name.startswith(word)]
    if before and before[0] in ("show", "export", "report"):
        return [text for text in _folders(before[0]) if text.startswith(word)]
    found = [f"{name}=" for name in GROUPS if name.startswith(word)]
    return found if before else [*(name for name in COMMANDS if name.startswith(word)), *found]


def _folders(command: str) -> list[str]:
    """Return what a command on run folders takes: its options, and the latest folders."""
    from fedsim.report.overview import newest_first

    options = {"show": ["latest", "--open"], "export": ["--to", "--figures", "--format"]}
    runs = Path("runs")
    newest = newest_first(runs)[:OFFERED] if runs.is_dir() else []
    return [*options.get(command, []), *(text for path in newest if (text := str(path)).isprintable())]
