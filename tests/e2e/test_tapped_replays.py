"""Replays of tapped apps: the user's own model, with truth or without, and the example app."""

import sys
from pathlib import Path

import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from tapped_app import CLIENTS, TASK, Small, client_app, counts, federate, replayed, tap_with_truth
from torch import Tensor

from fedsim.commands.cli import main
from fedsim.core.errors import FedsimError
from fedsim.flower.wiretap import Wiretap, keep_truth
from fedsim.lab import tapped
from fedsim.lab.replay import prepare_replay
from fedsim.storage.runfolder import RunFolder

ROOT = Path(__file__).parents[2]
OWN = "model=tapped_app.Small"
FORM = ("task.input_shape=[1,4,4]", "task.num_classes=3")


def test_a_replay_with_the_users_model_scores_where_truth_is_known(tmp_path) -> None:
    source = tap_with_truth(tmp_path / "tap", task=TASK, model=Small())
    folder = replayed(
        source,
        tmp_path / "scored",
        OWN,
        "model.width=12",
        "attack=ilrg",
        "metric=[leacc,lnacc,embedding_cosine]",
    )
    metrics, baseline = folder.summary()["metrics"], folder.summary()["baseline"]
    assert metrics["leacc"] > baseline["leacc"]
    assert metrics["lnacc"] > baseline["lnacc"]
    assert "The model is tapped_app.Small" in (folder.path / "report.html").read_text()


@pytest.mark.drawn
def test_the_command_replays_without_truth_shows_guesses_and_says_so(tmp_path, monkeypatch, capsys) -> None:
    federate(Wiretap(FedAvg(), tmp_path / "tap"), client_app())
    (tmp_path / "users_own.py").write_text(USERS_OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    told = ("disclosed.learning_rate=0.05", "disclosed.num_examples=6")  # of client 0: others have more
    form = (*FORM, "task.mean=0.4", "task.std=[0.3]", "hydra.run.dir=out")
    command = ["fedsim", "replay", "tap", "model=users_own.Net", "attack=ilrg", *form, *told]
    monkeypatch.setattr(sys, "argv", command)
    main()
    said, folder = capsys.readouterr().out, RunFolder(tmp_path / "out")
    assert "nothing is scored, the report shows the guesses\nround 1, client 1000: " in said
    assert set(folder.summary()["metrics"]) == {"bytes"}
    assert folder.guess(1, 1000).class_counts.tolist() == counts(0, 1)
    page = (folder.path / "report.html").read_text()
    assert "No truth is known of these observations" in page
    assert "told learning_rate = 0.05, num_examples = 6" in page
    assert page.count("data:image/svg+xml") >= CLIENTS
    monkeypatch.setattr(sys, "argv", ["fedsim", "report", "tap"])
    main()
    assert "A Flower app under FedAvg was tapped" in (tmp_path / "tap" / "report.html").read_text()


USERS_OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)

    def forward(self, images):
        return self.last(self.norm(self.first(images.flatten(1))).relu())
"""


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], r"model: the Wiretap was told none\. Remedy: model="),
        (
            [OWN],
            r"task\.input_shape: the Wiretap was not told\. Remedy: task\.input_shape=",
        ),
        ([OWN, "task.input_shape=[1,4,4]"], r"task\.num_classes: .*Remedy"),
        (
            [OWN, "task.input_shape=4", "task.num_classes=3"],
            r"expected \[channels,height",
        ),
        (["model=nowhere.Net", *FORM], "'nowhere' cannot be imported.*Remedy"),
        (["model=Net", *FORM], "expected module.Class, got no module"),
        (["model=tapped_app.Nothing", *FORM], "no class 'Nothing' in 'tapped_app'"),
        (["model=tapped_app.no_model", *FORM], "expected an nn.Module, got str"),
        ([OWN, "model.height=3", *FORM], "cannot be made .*height.*Remedy: model.NAME"),
        (
            [OWN, "model.width=7", *FORM],
            r"'first.weight' has shape \(7, 16\), sent was \(12",
        ),
        (
            ["model=tapped_app.Other", *FORM],
            "its parameter 'other.weight' was not sent, got first.bias.*Remedy",
        ),
        (
            [OWN, *FORM, "task.input_shape=[1,5,5]"],
            "does not take images of shape.*Remedy",
        ),
        ([OWN, *FORM, "task.num_classes=4"], r"logits \(1, 4\).*got \(1, 3\)"),
        (
            [OWN, *FORM, "disclosed.learning_rate=-1"],
            "disclosed.learning_rate: expected a positive",
        ),
        (
            [OWN, *FORM, "disclosed.local_steps=0"],
            "disclosed.local_steps: expected a whole number",
        ),
        (["federation.rounds=3"], "the replay of a tapped folder takes attack"),
        ([OWN, *FORM, "task.stdev=7"], "the replay of a tapped folder takes .*got 'task.stdev=7'"),
        ([OWN, *FORM, "disclosed.num_examples2=7"], "got 'disclosed.num_examples2=7'"),
    ],
)
def test_mistakes_in_a_replay_are_named_before_anything_is_written(
    tmp_path, overrides, words, tapped_once
) -> None:
    with pytest.raises(FedsimError, match=words):
        replayed(tapped_once, tmp_path / "out", *overrides)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def tapped_once(tmp_path_factory) -> Path:
    """A tapped folder that nobody described."""
    folder = tmp_path_factory.mktemp("once") / "tap"
    federate(Wiretap(FedAvg(), folder), client_app())
    return folder


def test_the_example_app_leaks_its_labels_and_images(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "flower-quickstart"))
    monkeypatch.chdir(tmp_path)
    import in_process

    in_process.main()
    assert len(RunFolder(tmp_path / "tapped").observed()) == 12
    for path in (tmp_path / "tapped" / "observations").glob("round_[23].client*"):
        path.unlink()  # four batches are enough
    labels = replayed(tmp_path / "tapped", tmp_path / "labels", "attack=ilrg", "metric=[lnacc]")
    assert labels.summary()["metrics"]["lnacc"] == 1.0 > labels.summary()["baseline"]["lnacc"]
    images = replayed(
        tmp_path / "tapped",
        tmp_path / "images",
        "attack=ig",
        "metric=[psnr]",
        "attack.optimiser.iterations=200",
    )
    assert images.summary()["metrics"]["psnr"] > images.summary()["baseline"]["psnr"] + 1
    lines = (ROOT / "examples/flower-quickstart/quickstart/server_app.py").read_text().splitlines()
    plain = [line for line in lines if "# wiretap:" not in line]
    assert len(lines) - len(plain) <= 3
    assert not any("fedsim" in line or "Wiretap" in line for line in plain)


@pytest.mark.slow
def test_the_language_model_app_leaks_its_sentences(tmp_path, monkeypatch) -> None:
    app = ROOT / "examples" / "flower-finetuning"
    monkeypatch.syspath_prepend(str(app))
    monkeypatch.delitem(sys.modules, "in_process", raising=False)  # the other example has one, too
    monkeypatch.chdir(tmp_path)
    import in_process

    in_process.main()
    monkeypatch.delitem(sys.modules, "in_process")
    for path in (tmp_path / "tapped" / "observations").glob("round_2.client*"):
        path.unlink()
    own = ("model=finetuning.task.net", "attack=dager", "metric=[exact_sentences]")
    told = replayed(tmp_path / "tapped", tmp_path / "told", *own)
    assert told.summary()["metrics"]["exact_sentences"] == 1.0 > told.summary()["baseline"]["exact_sentences"]
    lines = (app / "finetuning/server_app.py").read_text().splitlines()
    assert sum("# wiretap:" in line for line in lines) == 3


def test_parts_of_attacks_are_exchanged_and_an_unreadable_file_is_a_fault(tmp_path) -> None:
    source = tap_with_truth(tmp_path / "tap", task=TASK)
    (source / "observations" / "round_1.client_1001.safetensors").write_bytes(b"junk")
    part = ("~attack.labels", "+attack.labels={_target_: fedsim.attacks.privacy.matching.labels.TrueCounts}")
    short = ("attack=ig", "attack.optimiser.iterations=5", "metric=[psnr]")
    with pytest.raises(FedsimError, match="TrueCounts"):  # it gets as far as to look for the part
        replayed(source, tmp_path / "parts", OWN, *short, *part)
    folder = replayed(source, tmp_path / "out", OWN, *short)
    (fault,) = [row for row in folder.scores() if row.error]
    assert (fault.round, fault.client) == (1, 1001)
    assert "was changed or damaged since it was written" in fault.error
    assert len(folder.guessed()) == 5
    assert tapped.source_of(folder).path == source
    assert folder.kind == "replay"


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2)),
        (torch.full((2, 1, 4, 4), 200.0), torch.zeros(2)),
        (torch.zeros(2, 1, 4, 4) - 0.4, torch.zeros(2)),
        (torch.zeros(2, 16), torch.zeros(2)),
        (torch.zeros(2, 1, 4, 4), torch.zeros(3)),
        (torch.full((2, 1, 4, 4), float("nan")), torch.zeros(2)),
    ],
)
def test_truth_that_is_none_is_refused(tmp_path, images: Tensor, labels: Tensor) -> None:
    tap = Wiretap(FedAvg(), tmp_path / "tap")
    with pytest.raises(FedsimError, match=r"keep_truth: expected floats .* in \[0, 1\].*Remedy"):
        tap.keep_truth(round=1, client=1000, images=images, labels=labels)
    with pytest.raises(FedsimError, match=r"is no tapped folder\. Remedy"):
        keep_truth(tmp_path / "elsewhere", round=1, client=1000, images=images, labels=labels)
    assert not (tmp_path / "elsewhere").exists()


def test_a_class_that_nobody_can_import_is_not_noted(tmp_path) -> None:
    class Local(Small):
        pass

    Wiretap(FedAvg(), tmp_path / "tap", model=Local(), task=TASK)
    with pytest.raises(FedsimError, match=r"the Wiretap was told none\. Remedy: model="):
        prepare_replay(RunFolder(tmp_path / "tap"), ["attack=ilrg"])
