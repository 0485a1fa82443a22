"""The way in: finds the subcommand, and turns a user's mistake into one clear message."""

import importlib
import os
import signal
import sys
from collections.abc import Sequence

import click

from fedsim import __version__
from fedsim.core import environment
from fedsim.core.errors import FedsimError, in_words, printable, suggestion

COMMANDS = {  # in the order of --help; each is a file of this folder
    "run": "play a federation, attack it, score the attack, write a report",
    "compare": "play every attack against every defense",
    "leaks": "what a deployment leaks, and which defense is worth its price",
    "replay": "attack an earlier run's observations again",
    "resume": "go on with a run that was interrupted",
    "check": "run experiments, and compare their figures with what is expected",
    "report": "write the reports of run folders again, or an index of runs",
    "show": "print a run's table, or open its report",
    "export": "one table of many runs: CSV, parquet or LaTeX; their figures as files",
    "list": "what there is: attacks, defenses, data, models, ...",
    "new": "begin an attack, defense or metric of your own",
    "prove": "train with a sealed proof of learning",
    "verify": "judge a proof, or the records of an audited run",
    "calibrate": "measure honest recomputation on this machine",
    "forge": "claim other data for recorded steps, and be judged",
    "prior": "learn from public images what pictures look like, for attacks",
    "keys": "make the keys of a prover and of a verifier",
    "completion": "let a shell complete commands and settings",
}
JUDGES = ("verify", "check")
EXAMPLES = """\b
Without a command, settings are for `run`:
  fedsim attack=idlg model=lenet5 data=cifar10_small
  fedsim federation=fedavg federation.rounds=5 federation.clients=10 engine=ray
  fedsim -m attack=ilrg,idlg federation.batch_size=8,24,64     a sweep, and one report over all
  fedsim experiment=NAME              what a named experiment is: fedsim list experiment
  fedsim check experiment=NAME        run it, and compare its figures with what is expected
  fedsim attack=mine.MyAttack         a class of your own, in mine.py of this folder
  fedsim seed=1 hydra.run.dir=DIR     another seed, a run folder of your choice
  fedsim --cfg                        show the composed config and stop
\b
Results go to runs/DATE/TIME_NAME: report.html, summary.json, scores.csv, config.yaml, observations,
truth and guesses. The last line printed is that folder.
"""


class Commands(click.Group):
    """Finds subcommands by their files; anything that looks like a setting is for `run`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands, in their order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"fedsim.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` in front of settings."""
        first = args[0] if args else ""
        own = ("-h", "--help", "--version")
        if first not in own and (not first or first[0] in "-+~" or "=" in first):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which was perhaps meant."""
        if args and args[0] not in COMMANDS:
            raise FedsimError(
                f"unknown command {args[0]!r}: expected {', '.join(COMMANDS)} or KEY=VALUE."
                f"{suggestion(args[0], COMMANDS)} See fedsim --help."
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, message="fedsim %(version)s")
def fedsim() -> None:
    """fedsim: a federated-learning attack laboratory."""


class Signalled(KeyboardInterrupt):
    """A signal that asks to end, as Ctrl-C does: Slurm, `docker stop`, `timeout`, a terminal that closes."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a user's mistake ends in one clear message and status 1."""
    try:
        _end_tidily()
        given = list(sys.argv[1:] if arguments is None else arguments)
        with fedsim.make_context("fedsim", given) as context:  # its main() would take signals for Ctrl-C
            fedsim.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:  # after --help and --version
        sys.exit(end.exit_code)
    except click.ClickException as error:
        usage = error.ctx.get_usage() if isinstance(error, click.UsageError) and error.ctx else ""
        complain(f"{error.format_message()} {usage}".strip())
        verifying = isinstance(error, click.UsageError) and error.ctx and error.ctx.info_name in JUDGES
        sys.exit(3 if verifying else 1)  # of a judge, 1 would say that something was rejected
    except FedsimError as error:
        complain(in_words(error))
        sys.exit(1)
    except BrokenPipeError:  # whoever read what is printed has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:  # a disk that is full or read-only, or a folder that is not ours
        if error.filename is None:
            raise
        complain(f"{error.filename}: {error.strerror}. Remedy: room and rights on that disk.")
        sys.exit(1)
    except KeyboardInterrupt as stop:
        print("fedsim: interrupted; what there was is kept", file=sys.stderr)
        sys.exit(128 + (stop.number if isinstance(stop, Signalled) else signal.SIGINT))


def complain(words: str) -> None:
    """Print a complaint."""
    print(printable(f"fedsim: {words}"), file=sys.stderr)


def _end_tidily() -> None:
    """Let signals end a command as Ctrl-C does, and let nobody else read what it writes."""

    def end(number: int, frame: object) -> None:
        raise Signalled(number)

    os.umask(0o077)
    environment.keep_caches_together()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores the latter
            signal.signal(number, end)


if __name__ == "__main__":
    main()
