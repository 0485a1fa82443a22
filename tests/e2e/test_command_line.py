"""The `fedsim` command as a user types it, in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from small_settings import SOFTMAX

ROOT = Path(__file__).parents[2]
FAST = (*SOFTMAX, "federation.rounds=1")


MINE = """
import numpy
import torch
from torch import nn

from fedsim import Attack, Dataset, Defense, Reconstruction, Task
from fedsim.data.images import array_images


class Counts(Attack):
    \"\"\"Class counts by the last bias.\"\"\"

    def __init__(self, *, strength: float = 1.0) -> None:
        self.strength = strength

    def run(self, model, task, observations):
        share = (-self.strength * observations[-1].received["body.3.bias"]).clamp(min=0)
        counts = (share / share.sum() * observations[-1].num_examples).round().long()
        return Reconstruction(class_counts=counts)


class Half(Defense):
    \"\"\"A smaller reply.\"\"\"

    def __init__(self, *, scale: float = 0.5) -> None:
        self.scale = scale

    def on_reply(self, reply, kind, generator):
        return {name: tensor * self.scale for name, tensor in reply.items()}


class Net(nn.Module):
    \"\"\"Two layers.\"\"\"

    def __init__(self, num_classes: int, width: int = 16) -> None:
        super().__init__()
        layers = nn.Linear(64, width), nn.ReLU(), nn.Linear(width, num_classes)
        self.body = nn.Sequential(nn.Flatten(), *layers)

    def forward(self, images):
        return self.body(images)


def pictures(*, size: int = 160) -> Dataset:
    \"\"\"Noise.\"\"\"
    random = numpy.random.default_rng(0)
    def drawn(number):
        pixels = random.integers(0, 256, (number, 8, 8), numpy.uint8)
        return array_images(pixels, random.integers(0, 4, number), "mine")

    return Dataset(task=Task(input_shape=(1, 8, 8), num_classes=4), train=drawn(size), test=drawn(40))
"""


def fedsim(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedsim", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )


def test_a_run_a_replay_and_a_report(tmp_path: Path, command) -> None:
    done = fedsim(*FAST, f"hydra.run.dir={tmp_path}/chosen", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no warnings
    assert done.stdout.splitlines()[-1] == str(tmp_path / "chosen")
    assert "lnacc" in done.stdout
    assert json.loads((tmp_path / "chosen" / "summary.json").read_text())["status"] == "complete"
    (tmp_path / "chosen" / "report.html").unlink()
    again = command("report", "chosen", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "chosen" / "report.html").exists()
    nearest = ("attack.rounding=nearest", "hydra.run.dir=same")
    same = command("replay", "../chosen", *nearest, cwd=tmp_path / "chosen")
    assert same.returncode == 0, same.stderr
    config = (tmp_path / "chosen" / "same" / "config.yaml").read_text()
    assert "rounding: nearest" in config
    assert "attack: ilrg" in config
    refused = command("replay", "chosen", "model=mlp", cwd=tmp_path)
    assert "replay takes only attack" in refused.stderr
    replayed = command("replay", "chosen", "attack=idlg", cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stderr
    folder = Path(replayed.stdout.splitlines()[-1])
    assert folder.parent.parent == tmp_path / "runs"
    assert folder.name.endswith("replay_idlg_softmax_synthetic")


def test_a_sweep_leaves_a_folder_a_run_and_one_report_also_when_a_run_fails(tmp_path: Path, command) -> None:
    sweep = ("-m", *FAST, "attack=ilrg,idlg", "federation.labels=natural,one_per_class,nonsense")
    done = command(*sweep, f"hydra.sweep.dir={tmp_path}/sweep", cwd=tmp_path)
    assert done.returncode == 1  # one_per_class is impossible with 6 examples of 4 classes
    assert "1_ilrg_softmax_synthetic: round 1: none of 4 clients" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / "sweep")
    runs = sorted(path.name for path in (tmp_path / "sweep").glob("[!.]*") if path.is_dir())
    assert runs == sorted(
        ["figures", *(f"{i}_{'ilrg' if i < 3 else 'idlg'}_softmax_synthetic" for i in range(6))]
    )
    table = (tmp_path / "sweep" / "sweep.csv").read_text().splitlines()
    assert table[0].startswith("run,attack,federation.labels,")
    assert table[1].startswith("0_ilrg_softmax_synthetic,ilrg,natural,")
    assert any("expected one of natural" in line for line in table)  # a run that could not be built
    summary = json.loads((tmp_path / "sweep" / "summary.json").read_text())
    assert summary["status"] == "failed"  # though it ended, and two runs of it have results
    assert summary["reason"].startswith("4 of the runs failed; the first: 1_ilrg")
    page = (tmp_path / "sweep" / "report.html").read_text()
    assert "4 not complete" in page
    assert page.count("/report.html") == 4  # two never got as far as a report


MORE_MISTAKES = [
    (["data=npz", "data.path=none.npz"], "no such file"),
    (["data=npz"], "data.path"),
    (["attack.rounding=up"], "attack.rounding: expected repair or nearest, got 'up'"),
    (["+attack.depth=2"], "takes no argument 'depth'"),
    (["seed=abc"], "seed: expected a whole number, got 'abc'"),
    (["device=tpu9"], "device: expected cpu or cuda"),
    (["device=mps"], "device: expected cpu or cuda, got 'mps': it has no float64"),
    (["model=vgg11"], "model vgg11 does not take images of shape (1, 28, 28)"),
    (["defense=[noise]", "defense.noise.sigma=-1"], "defense.noise.sigma: expected a number"),
    (["defense=[{noise: {sigma: 5}}]"], "settings by themselves: defense.noise.SETTING=VALUE"),
    (["defense=[clip,clip]"], "defense: expected each name once, got 'clip' twice"),
    (["name=größe"], """Remedy, if the value is one text: "name='größe'\""""),
]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["federation.clinets=3"], "federation.clinets: no such setting, expected one of clients, "),
        (["federation.clinets=3"], "Did you mean clients? Remedy: fedsim --cfg"),
        (["show", "nowhere"], "nowhere: no such folder"),
        (["federation.clients=-3"], "federation.clients: expected a whole number of at least 1, got -3"),
        (["attack=ilgr"], "attack=ilgr: no such yaml. Did you mean ilrg"),
        (["nonsense"], "unknown command 'nonsense'"),
        (["list", "atack"], "unknown group or module 'atack'"),
        (["report"], "Missing argument 'FOLDERS...'"),
        (["report", "."], "holds no run"),
        (["replay", "."], "is not a run folder"),
        (["replay"], "Missing argument 'RUN'"),
        (["atack=idlg"], "no setting 'atack'. Did you mean attack"),
        (["+atack=idlg"], "no setting 'atack'. Did you mean attack"),
        (["lst"], "unknown command 'lst'"),
        (["keys", "--hlep"], "No such option"),
        (["kind=nonsense"], "kind: expected one of run, sweep"),
        *MORE_MISTAKES,
    ],
)
def test_a_mistake_ends_in_a_clear_message_and_no_folder(
    arguments, words: str, tmp_path: Path, command
) -> None:
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("config.yaml"))
    left = [path for path in tmp_path.rglob("*") if path.is_dir() and not any(path.iterdir())]
    assert [path.name for path in left] in ([], ["runs"])


def test_a_mistake_leaves_the_users_own_folders_alone(tmp_path: Path, command) -> None:
    mine = tmp_path / "mine" / "deep"
    mine.mkdir(parents=True)
    done = command("federation.clients=-3", "hydra.run.dir=out", cwd=mine)
    assert done.returncode == 1
    assert mine.is_dir()
    assert not (mine / "out").exists()


def test_a_run_that_fails_says_where_what_it_has_is(tmp_path: Path, command) -> None:
    done = command(*FAST, "federation.labels=one_per_class", "hydra.run.dir=out", cwd=tmp_path)
    assert done.returncode == 1
    assert "none of 4 clients" in done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / "out")


@pytest.mark.parametrize("engine", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_ctrl_c_ends_the_process_and_keeps_what_there_was(engine: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fedsim",
        *FAST,
        "federation.rounds=100000",
        f"engine={engine}",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        [*command, "hydra.run.dir=out"],
        cwd=tmp_path,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a shell's background
        **pipes,
    )
    try:
        while process.poll() is None and not list((tmp_path / "out").glob("observations/round_2.*")):
            pass
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "interrupted; what there was is kept" in errors
    assert output.splitlines()[-1] == str(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "interrupted"
    assert (tmp_path / "out" / "report.html").exists()
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_help_says_all_commands(tmp_path: Path, command) -> None:
    text = command("--help", cwd=tmp_path).stdout
    for word in ("list", "report", "replay", "fedsim -m", "hydra.run.dir", "completion"):
        assert word in text


@pytest.mark.slow
def test_a_person_with_the_wheel_and_one_file_of_their_own(tmp_path: Path) -> None:
    """Nothing of the checkout is in reach: the wheel carries configs, assets, templates and all parts."""
    source, site, here = tmp_path / "source", tmp_path / "site", tmp_path / "here"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "fedsim", "attacks", "defenses", "conf"):
        subprocess.run(["cp", "-a", str(ROOT / name), str(source)], check=True)  # links stay links
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "."]
    done = subprocess.run([*build, str(source)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        assert {name.partition("/")[0] for name in file.namelist()} == {
            "fedsim",
            f"{wheel.stem[:16]}.dist-info",
        }
        file.extractall(site)
    shipped = {str(p.relative_to(site / "fedsim/conf")) for p in site.rglob("*.yaml")}
    assert shipped == {str(p.relative_to(ROOT / "conf")) for p in (ROOT / "conf").rglob("*.yaml")}
    here.mkdir()
    (here / "mine.py").write_text(MINE)
    (here / "attacks").mkdir()  # as attack researchers have: it must not stand in the way of ours
    (here / "attacks" / "__init__.py").write_text("raise RuntimeError('not this one')")

    def own(*arguments: str) -> str:
        said = fedsim(*arguments, cwd=here, PYTHONPATH=str(site))
        assert said.returncode == 0, said.stderr
        return said.stdout

    rules = ("data=mine.pictures", "model=mine.Net", "federation.rounds=1", "federation.batch_size=6")
    own("attack=mine.Counts", "defense=[mine.Half]", "defense.Half.scale=0.25", *rules, "hydra.run.dir=run")
    config = (here / "run" / "config.yaml").read_text()
    assert "scale: 0.25" in config
    assert "width: 16" in config  # a default of the class, to be seen and set
    assert "attack=mine.Counts" in own("list", "mine")
    own("replay", "run", "attack.strength=2", "allow=mine", "hydra.run.dir=again")
    own("-m", "attack=mine.Counts,ilrg", "model.width=8,16", *rules, "hydra.sweep.dir=sweep")
    assert (here / "sweep" / "sweep.csv").read_text().count(",complete") == 4
    own("compare", "attack=[mine.Counts,ilrg]", "defense=[none,mine.Half]", *rules, "into=grid")
    assert "mine.Counts,mine.Half,lnacc" in (here / "grid" / "comparison.csv").read_text()
    own("report", "run", "sweep", "grid")
