"""The `fedsim` command. Imports of torch, Flower and Hydra wait until a command needs them."""

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.core import environment
from fedsim.core.errors import FedsimError, in_words, printable
from fedsim.core.version import __version__

if TYPE_CHECKING:
    from fedsim.storage.runfolder import RunFolder

HELP = """\
fedsim: a federated-learning attack laboratory.

  fedsim [KEY=VALUE ...]              play a federation, attack it, score the attack, write a report
  fedsim -m [KEY=VALUE,VALUE ...]     sweep: one run for every combination, and one report over all
  fedsim list [GROUP ...]             what there is: attacks, defences, data, models, metrics, experiments
  fedsim report DIR ...               write the reports of run folders or sweeps again
  fedsim compare attack=[...] defense=[...] [seeds=N] [jobs=N] [into=DIR] [KEY=VALUE ...]
                                      every attack against every defence; run again, only what is missing runs
  fedsim replay RUN [attack=... ...]  attack an earlier run's saved observations again, without training
  fedsim replay TAPPED model=module.Class [attack=...] [task.input_shape=[3,32,32] task.num_classes=10]
                                      attack what a Wiretap kept of your own Flower app, with its model
  fedsim resume RUN                   go on with a run that was interrupted, after its last complete round
                                      replay and resume run code of others only with allow=MODULE
  fedsim prove [KEY=VALUE ...]        train outside of a federation, with a sealed proof of learning
  fedsim verify PROOF [KEY=VALUE ...] judge such a proof; exit status: 0 accepted, 1 rejected,
                                      2 malformed, 3 could not be judged
  fedsim verify RUN                   check the ledger of an audited run and the proofs beside it
  fedsim calibrate [KEY=VALUE ...]    measure what tells honest recomputation from a lie, on this machine
  fedsim forge [-m] [KEY=VALUE ...]   the forging game: claim other data for recorded steps, and be judged
  fedsim keys DIR                     make the keys of a prover and of a verifier
  fedsim --version | --help

Keys are Hydra overrides of conf/config.yaml, for example:

  fedsim attack=idlg model=lenet5 data=cifar10_small
  fedsim federation=fedavg federation.rounds=5 federation.clients=10 engine=ray
  fedsim -m attack=ilrg,idlg federation.batch_size=8,24,64
  fedsim experiment=NAME              a named experiment (see `fedsim list experiment`)
  fedsim seed=1 hydra.run.dir=DIR     another seed, a run folder of your choice
  fedsim --cfg job                    show the composed config and stop

Results go to runs/DATE/TIME_NAME: report.html, summary.json, scores.csv, config.yaml, observations,
truth and guesses. The last line printed is that folder.
"""


def main() -> None:
    """Run the command line; a user's mistake ends in one clear message and status 1."""
    arguments = sys.argv[1:]
    first = arguments[0] if arguments else ""
    commands: dict[str, Callable[[Sequence[str]], None]] = {
        "list": _list,
        "report": _report,
        "replay": _replay,
        "resume": _resume,
        "compare": _compare,
        "prove": _prove,
        "verify": _verify,
        "calibrate": _calibrate,
        "forge": _forge,
        "keys": _keys,
    }
    try:
        if first in ("-h", "--help", "help"):
            print(HELP, end="")
        elif first == "--version":
            print(f"fedsim {__version__}")
        elif first in commands:
            _end_tidily()
            commands[first](arguments[1:])
        elif first and not first.startswith("-") and "=" not in first and not first.startswith(("~", "+")):
            raise FedsimError(
                f"unknown command {first!r}: expected {', '.join(commands)} or KEY=VALUE. See fedsim --help."
            )
        else:
            _end_tidily()
            _experiment()
    except FedsimError as error:
        _complain(error)
        sys.exit(1)
    except OSError as error:  # a disk that is full or read-only, or a folder that is not ours
        if error.filename is None:
            raise
        _complain(FedsimError(f"{error.filename}: {error.strerror}. Remedy: room and rights on that disk."))
        sys.exit(1)
    except KeyboardInterrupt as stop:
        print("fedsim: interrupted; what there was is kept", file=sys.stderr)
        sys.exit(128 + (stop.number if isinstance(stop, Signalled) else signal.SIGINT))


class Signalled(KeyboardInterrupt):
    """A signal that asks to end, as Ctrl-C does: Slurm, `docker stop`, `timeout`, a terminal that closes."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _end_tidily() -> None:
    """Let signals end a command as Ctrl-C does, and let nobody else read what it writes."""

    def end(number: int, frame: object) -> None:
        raise Signalled(number)

    os.umask(0o077)
    environment.keep_caches_together()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores the latter
            signal.signal(number, end)


def _complain(error: BaseException, where: str = "") -> None:
    print(f"fedsim: {printable(where)}{in_words(error)}", file=sys.stderr)


def _experiment() -> None:
    """Hand over to Hydra, which composes the config and calls back, once or for every run of a sweep."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from omegaconf.errors import OmegaConfBaseException

    from fedsim.config.catalog import config_dir

    failures: list[Exception] = []
    sweep: list[Path] = []  # the sweep's folder, once a run of it has begun

    @hydra.main(config_path=str(config_dir()), config_name="config", version_base="1.3")
    def task(config: Any) -> float | None:
        from fedsim.config import build
        from fedsim.lab.experiment import run
        from fedsim.lab.record import record_failure
        from fedsim.storage.runfolder import RunFolder

        path = Path(HydraConfig.get().runtime.output_dir)
        sweeping = HydraConfig.get().mode == RunMode.MULTIRUN
        if sweeping:
            sweep[:] = [path.parent]
        objective = None
        try:
            if "optuna" in str(HydraConfig.get().sweeper.get("_target_")) and not config.objective:
                raise FedsimError(
                    "hydra/sweeper=search needs to know what to look at. Remedy: objective=lnacc."
                )
            folder = run(build.experiment(build.plain(config)), path)
            objective = _objective(folder, config.objective)
        except Exception as error:
            if not sweeping and not isinstance(error, FedsimError):
                raise  # a fault of ours: show where
            failures.append(error)
            if sweeping:  # the other runs go on, and the sweep's report shows this one
                _complain(error, f"{path.name}: ")
                record_failure(RunFolder(path), "run", build.as_text(config), error)
        else:
            _announce(folder, last_line=not sweeping)
        finally:
            if not sweeping:
                _say_what_is_left(path)
        return objective

    os.environ["HYDRA_FULL_ERROR"] = "1"  # or Hydra would print a traceback and exit, whatever it is
    try:
        task()
    except (HydraException, OmegaConfBaseException) as error:
        raise FedsimError("\n".join(str(said) for said in (error, error.__cause__) if said)) from error
    except KeyboardInterrupt:
        if sweep:
            from fedsim.report.sweep import write_sweep_report

            print(f"report: {write_sweep_report(sweep[0])}")
        raise
    from fedsim.report.sweep import SweepReport

    if SweepReport.incomplete:
        sys.exit(1)  # each was named when it happened
    if failures:
        raise failures[0]


def _objective(folder: "RunFolder", name: str | None) -> float | None:
    """Return the metric that a searching sweeper asked for."""
    metrics = folder.summary()["metrics"]
    if name is not None and metrics.get(name) is None:
        raise FedsimError(f"objective={name}: expected one of {', '.join(metrics)}")
    return None if name is None else float(metrics[name])


def _say_what_is_left(folder: Path) -> None:
    """After a run that did not complete, print its folder; remove one that Hydra made for nothing."""
    from fedsim.storage.runfolder import RunFolder
    from fedsim.storage.status import Status

    if (folder / "config.yaml").exists():
        if RunFolder(folder).status is not Status.COMPLETE:
            print(printable(str(folder.resolve())))
    elif folder.is_dir() and not any(folder.iterdir()) and folder.resolve() != Path.cwd():
        folder.rmdir()
        date = folder.parent
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", date.name) and not any(date.iterdir()):
            date.rmdir()


def _list(arguments: Sequence[str]) -> None:
    from fedsim.config.catalog import GROUPS, catalog_text

    if unknown := [name for name in arguments if name not in GROUPS]:
        raise FedsimError(f"unknown group {unknown[0]!r}: expected some of {', '.join(GROUPS)}")
    print(catalog_text(tuple(arguments) or GROUPS))


def _report(arguments: Sequence[str]) -> None:
    from fedsim.report.sweep import run_folders, write_sweep_report
    from fedsim.report.write import write_report
    from fedsim.storage.runfolder import RunFolder

    if not arguments:
        raise FedsimError("expected a run folder or a sweep's folder: fedsim report DIR ...")
    for name in arguments:
        folder = Path(name)
        if (folder / "config.yaml").is_file():
            print(write_report(RunFolder(folder)))
        elif (folder / "forgeries.csv").is_file():
            raise FedsimError(f"{folder} holds a forging game: its report.html was written when it ended")
        elif runs := run_folders(folder):
            for run in runs:
                write_report(RunFolder(run))
            print(write_sweep_report(folder))
        else:
            raise FedsimError(f"{folder} holds no run: looked for config.yaml in it and in its folders")


def _replay(arguments: Sequence[str]) -> None:
    from fedsim.config import build
    from fedsim.config.trust import check_trusted
    from fedsim.lab import tapped
    from fedsim.lab.experiment import replay
    from fedsim.storage.runfolder import RunFolder

    if not arguments or ("=" in arguments[0] and not Path(arguments[0]).is_dir()):
        raise FedsimError("expected a run folder first: fedsim replay RUN [attack=...] [metric=[...]]")
    source, (overrides, allowed) = RunFolder(Path(arguments[0])), _permitted(arguments[1:])
    if tapped.is_tapped(source):
        told, config, path = tapped.compose_tapped(source, overrides)
        check_trusted(config, overrides, allowed)
        _announce(replay(tapped.experiment(config, told), told, path), last_line=True)
        return
    settable = ("attack", "metric", "threat", "name", "device", "threads", "attackers", "hydra.run.dir")
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key not in settable and not key.startswith(("attack.", "metric.", "threat.")):
            raise FedsimError(
                f"replay takes only {', '.join(settable)}, got {override!r}: the rest is as it was played"
            )
    config, path = build.compose_replay(source.config_text(), overrides)
    check_trusted(config, overrides, allowed)
    folder = replay(build.experiment(config), source, path)
    _announce(folder, last_line=True)


def _resume(arguments: Sequence[str]) -> None:
    from fedsim.config import build
    from fedsim.config.trust import check_trusted
    from fedsim.lab import tapped
    from fedsim.lab.resume import resume
    from fedsim.storage.runfolder import RunFolder
    from fedsim.storage.status import Status

    others, allowed = _permitted(arguments[1:])
    if not arguments or others or ("=" in arguments[0] and not Path(arguments[0]).is_dir()):
        raise FedsimError(
            "expected a run folder alone: fedsim resume RUN [allow=MODULE]. Its settings are as they were."
        )
    folder = RunFolder(Path(arguments[0]))
    if tapped.is_tapped(folder):
        raise FedsimError(
            f"{folder.path}: another Flower app's run, kept by a Wiretap. Remedy: fedsim replay."
        )
    config = build.parse_text(folder.config_text())
    check_trusted(config, (), allowed)
    if folder.status is not Status.COMPLETE:
        resume(build.experiment(config), folder, tapped.source_of(folder))
    _announce(folder, last_line=True)


def _permitted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take `allow=MODULE,...` out of the arguments: whose code a stored config may run beside fedsim's."""
    given = [argument for argument in arguments if argument.startswith("allow=")]
    words = [word.strip() for argument in given for word in argument[6:].strip("[]").split(",")]
    return [argument for argument in arguments if argument not in given], [word for word in words if word]


def _compare(arguments: Sequence[str]) -> None:
    from datetime import datetime

    from fedsim.lab.compare import compare, parse
    from fedsim.report.comparison import write_comparison
    from fedsim.storage.folder import Storage

    grid, folder, jobs = parse(arguments)
    folder = folder or Path(f"runs/{datetime.now():%Y-%m-%d/%H-%M-%S}_comparison")
    folder = folder.resolve()
    with Storage(folder).claimed():
        try:
            problems = compare(grid, folder, jobs)
        finally:  # an interrupted comparison shows what it has
            if Storage(folder).has("settings.json"):
                report = write_comparison(grid, folder)
    for problem in problems:
        print(printable(f"fedsim: {problem}"), file=sys.stderr)
    print(f"report: {report}")
    print(folder)
    if problems:
        sys.exit(1)


def _prove(arguments: Sequence[str]) -> None:
    from fedsim.config import build
    from fedsim.storage.folder import Storage

    audit, training, config = _central(arguments)
    path = audit.prove_training(training)
    Storage(path.parent).write_text("proof.yaml", build.as_text(config))  # what to verify it with
    print(f"proof: {path.stat().st_size:,} bytes")
    print(path.resolve())


def _verify(arguments: Sequence[str]) -> None:
    if not arguments or "=" in arguments[0]:
        raise FedsimError("expected a proof first: fedsim verify PROOF data=... model=... proof.keys=DIR")
    try:
        audit, training, _ = _central(arguments[1:])
        if Path(arguments[0]).is_dir():
            number, problem = audit.check_records(Path(arguments[0]))
            print(f"changed: {problem}" if problem else f"unchanged: {number} proofs, as in the ledger")
            sys.exit(1 if problem else 0)
        verdict = audit.verify_file(Path(arguments[0]), training)
    except FedsimError as error:
        _complain(error)
        sys.exit(3)  # neither accepted nor rejected
    cost = f"{verdict.recomputed} of {verdict.steps} steps done again in {verdict.seconds:.2f} s"
    if verdict.accepted:
        print(f"accepted: {cost}, largest distance {verdict.distance:.3g} of at most {verdict.limit:.3g}")
        return
    place = "" if verdict.step is None else f", step {verdict.step}"
    print(f"rejected: {verdict.check}{place}: {verdict.reason}")
    sys.exit(2 if verdict.check == "form" else 1)


def _calibrate(arguments: Sequence[str]) -> None:
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from fedsim.storage.files import csv_text
    from fedsim.storage.folder import Storage

    audit, training, _ = _central(arguments)
    findings = [asdict(finding) for finding in audit.calibrate(training)]
    table = Table(*findings[0])
    for finding in findings:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in finding.values()))
    Console(width=100).print(table)
    lines = [list(findings[0]), *([str(value) for value in finding.values()] for finding in findings)]
    Storage(training.folder).write_text("calibration.csv", csv_text(lines))
    print((training.folder / "calibration.csv").resolve())


def _forge(arguments: Sequence[str]) -> None:
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return
    import torch

    from fedsim.config import build
    from fedsim.integrity.forge import Move, play
    from fedsim.report.forging import print_moves, refutation, write_forging
    from fedsim.storage.folder import Storage

    overrides = [argument for argument in arguments if argument not in ("-m", "--multirun")]
    named = {override.partition("=")[0] for override in overrides}
    chosen = [] if "audit" in named else ["audit=proof_of_learning"]
    chosen += [] if named & {"forgery", "experiment"} else ["forgery=[greedy,nearest]"]
    folder, configs = build.games([*chosen, "name=forging", *overrides], len(overrides) < len(arguments))
    if (folder / "forgeries.csv").exists():
        raise FedsimError(f"{folder} holds a game already. Remedy: another hydra.run.dir.")
    games = [(config.threads, build.forging_game(config, folder, name)) for name, config in configs]
    texts = [f"# {name or 'the game'}\n{build.as_text(config)}" for name, config in configs]
    Storage(folder).write_text("forge.yaml", "---\n".join(texts))
    moves = list[Move]()
    try:
        for threads, game in games:
            torch.set_num_threads(threads)
            moves.extend(play(game))
    finally:  # an interrupted game shows what it has
        if moves:
            report = write_forging(moves, folder)
    print_moves(moves)
    for name, config in configs:
        if config.forge.examples is not None:
            print(refutation([move for move in moves if move.game == name], list(config.forge.examples)))
    print(f"report: {report.resolve()}")
    print(folder.resolve())


def _keys(arguments: Sequence[str]) -> None:
    if len(arguments) != 1 or "=" in arguments[0]:
        raise FedsimError("expected a folder: fedsim keys DIR")
    from fedsim.config import build

    build.auditor(build.compose(["audit=proof_of_learning", "name=keys"])).make_keys(Path(arguments[0]))
    print("each keeps its .secret and gives its .public to the other")
    print(Path(arguments[0]).resolve())


def _central(arguments: Sequence[str]) -> Any:
    """Build what the commands around proofs work with, from Hydra overrides."""
    import torch

    from fedsim.config import build

    chosen = [] if any(a.startswith("audit=") for a in arguments) else ["audit=proof_of_learning"]
    config, folder = build.compose_with_folder([*chosen, "name=proof", *arguments])
    audit, training = build.central_training(config, folder)
    torch.set_num_threads(config.threads)
    return audit, training, config


def _announce(folder: "RunFolder", last_line: bool) -> None:
    """Print the small table that ends a run, and where everything is."""
    from fedsim.report.terminal import print_summary

    print_summary(folder)
    if last_line:
        print(folder.path.resolve())


if __name__ == "__main__":
    main()
