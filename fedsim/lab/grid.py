"""Many runs or games in one folder: what is missing runs, one after another or several processes at once."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path

from omegaconf import DictConfig

from fedsim.config import build
from fedsim.config.compose import as_text, compose
from fedsim.core import progress
from fedsim.core.errors import FedsimError, in_words
from fedsim.core.settings import whole
from fedsim.flower.engines.engine import end_children
from fedsim.flower.engines.processes import end_with
from fedsim.lab.experiment import replay, run
from fedsim.lab.record import GaveUp, record_failure
from fedsim.lab.replay import replay_settings, replayed
from fedsim.storage.folder import Storage
from fedsim.storage.runfolder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work with a run folder of its own, to be done wherever there is a process for it."""

    path: Path

    @property
    def is_done(self) -> bool:
        """Whether there is a result: scores, moves of a game, or an attack that gave up."""
        try:
            return RunFolder(self.path).standing.has_result
        except FedsimError:  # damaged, or killed in the middle of a write: it is done again
            return False

    def play(self) -> str | None:
        """Do the work; return what went wrong, which is on record in the folder."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class RunJob(Job):
    """One run, to be made of overrides."""

    overrides: tuple[str, ...]
    source: Path | None = None  # a run whose observations to attack; None: play a federation

    def play(self) -> str | None:
        """Play a federation, or attack what another one left."""
        if self.source is None:
            return attempt(self.path, "run", lambda: compose(self.overrides), self._run)
        played = RunFolder(self.source)

        def attack(config: DictConfig) -> None:
            experiment = build.experiment(config)
            replay(experiment, replayed(played, experiment, config), self.path)

        return attempt(self.path, "replay", lambda: replay_settings(played, self.overrides).config, attack)

    def _run(self, config: DictConfig) -> None:
        run(build.experiment(config), self.path)


class RunsFailed(FedsimError):
    """Some of many runs failed; the others have their results."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(f"{len(problems)} of the runs failed; the first: {problems[0]}")
        self.problems = tuple(problems)


Pool = ProcessPoolExecutor | None  # None: this process


def begin_or_go_on(folder: RunFolder, kind: str, config_text: str) -> None:
    """Make a folder of many runs, or refuse one whose finished runs have other settings."""
    if not (folder.path / "config.yaml").exists():
        with folder.claimed():
            folder.begin(kind, config_text)
    elif folder.kind != kind or not folder.config_text().endswith(f"kind: {kind}\n{config_text}"):
        raise FedsimError(
            f"{folder.path} holds a {folder.kind} with other settings. Remedy: those in its config.yaml, or "
            "another folder."
        )


@contextmanager
def pool_of(processes: int) -> Iterator[Pool]:
    """Start so many processes for jobs; one: jobs run in this process."""
    if whole("jobs", processes) == 1:
        yield None
        return
    others = active_children()
    # Spawned: a forked process would share the parent's torch threads and random state.
    spawned = ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=end_with, initargs=(os.getpid(),)
    )
    with spawned as pool:
        try:
            yield pool
        except BaseException:  # nobody waits for runs that take hours: called again, it goes on
            pool.shutdown(wait=False, cancel_futures=True)
            end_children(others)
            raise


def run_missing(
    jobs: Iterable[Job], label: str, pool: Pool, ended: Callable[[Job], None] = lambda job: None
) -> list[str]:
    """Run the jobs that are not done; return what failed, in words. A failed one does not stop the others."""
    missing, problems = [job for job in jobs if not job.is_done], list[str]()
    with progress.bar(label, len(missing)) as advance:
        for done, (job, problem) in enumerate(_outcomes(missing, pool), start=1):
            if problem:
                problems.append(f"{job.path.name}: {problem}")
            ended(job)
            advance(done)
    return problems


def _outcomes(jobs: list[Job], pool: Pool) -> Iterator[tuple[Job, str | None]]:
    if pool is None:
        for job in jobs:
            yield job, play_anew(job)
        return
    running = {pool.submit(play_anew, job): job for job in jobs}
    for future in as_completed(running):
        try:
            problem = future.result()
        except Exception as error:  # the process died
            problem = in_words(error)
        yield running[future], problem


def play_anew(job: Job) -> str | None:
    """Do one job from its beginning, whatever an earlier try left; return what went wrong."""
    unfinished = Storage(job.path)
    unfinished.delete(unfinished.names())  # of a run that was broken off
    return job.play()


def attempt(
    path: Path, kind: str, config_of: Callable[[], DictConfig], play: Callable[[DictConfig], object]
) -> str | None:
    """Compose and play; a failure is recorded where the result would lie, and returned."""
    text = ""
    try:
        config = config_of()
        text = as_text(config)
        play(config)
    except GaveUp:
        return None  # a result: the report shows it
    except Exception as error:
        record_failure(RunFolder(path), kind, text, error)
        return in_words(error)
    return None
