"""Shared by all tests: one thread, small federations composed as the command line would."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from small_settings import SMALL
from torch import Tensor, nn

from fedsim.commands.cli import main
from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.core import progress
from fedsim.core.training import batch_gradient
from fedsim.core.types import Observation
from fedsim.data.images import Dataset
from fedsim.lab.experiment import Experiment, run
from fedsim.report.figures.drawing import Drawn
from fedsim.storage.runfolder import RunFolder

os.environ[progress.SETTING] = "off"  # what a slow machine would print is in no test's way


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave figures blank where nobody looks at them: drawing is most of what a small run costs."""
    if request.node.get_closest_marker("drawn") is None:
        monkeypatch.setattr("fedsim.report.page.as_svg", _blank)


def _blank(figure: Figure) -> Drawn:
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return Drawn(content=b'<svg xmlns="http://www.w3.org/2000/svg"/>', width=width, height=height)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, worker_id: str) -> Callable[[str, Callable[[Path], object]], Path]:
    """Return a maker of folders that all processes of a test run share: what takes long is made once."""
    own = tmp_path_factory.getbasetemp()
    shared = own if worker_id == "master" else own.parent

    def make(name: str, function: Callable[[Path], object]) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                function(folder)
                done.touch()
        return folder

    return make


@pytest.fixture
def small() -> Callable[..., Experiment]:
    """Return a builder of small experiments from overrides."""
    return lambda *overrides: build.experiment(compose([*SMALL, *overrides]))


@pytest.fixture
def play_small(tmp_path: Path, small: Callable[..., Experiment]) -> Callable[..., RunFolder]:
    """Return a runner of small experiments; each gets a folder of its own."""

    def play(*overrides: str, folder: str = "run") -> RunFolder:
        return run(small(*overrides), tmp_path / folder)

    return play


@pytest.fixture
def observe() -> Callable[..., Observation]:
    """Return a maker of honest gradient observations."""

    def make(model: nn.Module, images: Tensor, labels: Tensor, **told: int | None) -> Observation:
        gradient, _ = batch_gradient(model, images, labels)
        return Observation(
            round=1,
            client=0,
            sent={name: p.detach() for name, p in model.named_parameters()},
            received=gradient,
            kind="gradient",
            **({"num_examples": len(labels)} | told),
        )

    return make


@pytest.fixture
def draw() -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a drawer of random training batches."""

    def make(data: Dataset, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        indices = torch.randperm(len(data.train.labels), generator=generator)[:size]
        return data.train.batch(indices), data.train.labels[indices]

    return make


@pytest.fixture
def command(monkeypatch, capsys) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a caller of `fedsim` in this process: a new one takes seconds to start. Not for Hydra's own."""

    def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["fedsim", *arguments])
        status: str | int | None = 0
        capsys.readouterr()
        try:
            main()
        except SystemExit as end:
            status = end.code
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, int(status or 0), said.out, said.err)

    return call
