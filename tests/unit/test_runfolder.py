from pathlib import Path

import pytest
import torch
from faulty_disk import FaultyDisk, PowerCut

from fedsim.core.errors import FedsimError
from fedsim.core.types import Fault, Observation, Reconstruction, RoundResult, Truth
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.scores import ScoreRow
from fedsim.storage.tensors import read_tensors

SENT = {"w": torch.randn(3, 2), "b": torch.randn(3)}


def observation(round: int, client: int) -> Observation:
    received = {name: tensor + client for name, tensor in SENT.items()}
    return Observation(
        round=round, client=client, sent=SENT, received=received, kind="update", num_examples=4, loss=0.5
    )


def test_observations_come_back_in_order_and_bit_for_bit(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for round, client in ((2, 1), (1, 10), (1, 9)):
        folder.keep_observation(observation(round, client))
    read = list(folder.observations())
    assert [(o.round, o.client) for o in read] == [(1, 9), (1, 10), (2, 1)]
    assert folder.count_observations() == 3
    assert torch.equal(read[1].received["w"], SENT["w"] + 10)
    assert (read[0].kind, read[0].num_examples, read[0].loss, read[0].learning_rate) == (
        "update",
        4,
        0.5,
        None,
    )


@pytest.mark.parametrize("exact", [True, False])
def test_truth_comes_back_bit_for_bit(tmp_path: Path, exact: bool) -> None:
    images = torch.randint(0, 256, (2, 1, 3, 3)).float() / 255 if exact else torch.rand(2, 1, 3, 3)
    RunFolder(tmp_path).keep_truth(Truth(round=1, client=2, images=images, labels=torch.tensor([1, 0])))
    read = RunFolder(tmp_path).truth(1, 2)
    assert torch.equal(read.images, images)
    assert read.labels.tolist() == [1, 0]
    assert RunFolder(tmp_path).truth(1, 3) is None


def test_guesses_come_back(tmp_path: Path) -> None:
    guess = Reconstruction(class_counts=torch.tensor([1, 2]), trace=(0.5, 0.1), seconds=2.0, residual=1e-3)
    folder = RunFolder(tmp_path)
    folder.keep_guess(3, 1, guess)
    read = folder.guess(3, 1)
    assert read.class_counts.tolist() == [1, 2]
    assert read.images is None
    assert (read.trace, read.seconds, read.residual) == ((0.5, 0.1), 2.0, 1e-3)
    assert folder.guessed() == [(3, 1)]
    assert folder.guess(1, 1) is None


def test_tables_come_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    faults = [
        Fault(round=1, client=0, reason='said "no",\nthen left'),
        Fault(round=2, client=1, reason="NaN"),
    ]
    for fault in faults:
        folder.keep_fault(fault)
    assert folder.faults() == faults
    folder.keep_round(RoundResult(round=0, accuracy=0.1, loss=2.3))
    assert folder.history() == [RoundResult(round=0, accuracy=0.1, loss=2.3)]
    rows = [
        ScoreRow(round=1, client=0, attack="ilrg", metric="lnacc", value=0.123456789, baseline=None),
        ScoreRow(round=1, client=1, attack="ilrg", metric="fault", value=None, error="no, sir"),
    ]
    folder.write_scores(rows)
    assert folder.scores() == rows


def test_a_line_cut_short_by_a_crash_is_no_row(tmp_path: Path, monkeypatch) -> None:
    folder = RunFolder(tmp_path)
    folder.keep_round(RoundResult(round=0, accuracy=0.1, loss=2.3))
    with monkeypatch.context() as patch:
        FaultyDisk(patch, tmp_path, 3, PowerCut())  # after the manifest's line
        with pytest.raises(PowerCut):
            folder.keep_round(RoundResult(round=1, accuracy=0.1, loss=2.3))
    assert (tmp_path / "history.csv").read_text().count("\n") == 2
    assert [result.round for result in folder.history()] == [0]
    folder.keep_round(RoundResult(round=2, accuracy=0.1, loss=2.3))
    assert [result.round for result in folder.history()] == [0, 2]
    whole = (tmp_path / "history.csv").read_bytes()
    (tmp_path / "history.csv").write_bytes(whole[:-3])  # lost later
    with pytest.raises(FedsimError, match="was changed or damaged"):
        folder.history()


def test_broken_and_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"not this")
    with pytest.raises(FedsimError, match=r"bad\.safetensors"):
        read_tensors(tmp_path / "bad.safetensors")
    with pytest.raises(FedsimError, match="no such file"):
        read_tensors(tmp_path / "none.safetensors")
    with pytest.raises(FedsimError, match="not a run folder"):
        RunFolder(tmp_path).config_text()
    RunFolder(tmp_path).storage.write_text("summary.json", "{")
    with pytest.raises(FedsimError, match=r"summary\.json"):
        RunFolder(tmp_path).summary()


@pytest.mark.parametrize(
    ("heading", "words"),
    [
        ("format: 3\nkind: run\n", r"expected format 2, got 3\. Remedy: a newer fedsim"),
        ("format: 1\nkind: run\n", r"expected format 2, got 1\. Remedy: play it again"),
        ("name: older\n", r"expected format 2, got 1\. Remedy: play it again"),
    ],
)
def test_a_folder_of_another_format_is_refused_with_the_remedy(
    tmp_path: Path, heading: str, words: str
) -> None:
    folder = RunFolder(tmp_path)
    folder.storage.write_text("config.yaml", f"{heading}name: test\n")
    for read in (lambda: folder.kind, folder.config_text, folder.source):
        with pytest.raises(FedsimError, match=words):
            read()


def test_a_folder_begins_once_and_knows_what_it_is(tmp_path: Path) -> None:
    source, folder = RunFolder(tmp_path / "a: b 'c' \"d\""), RunFolder(tmp_path / "replay")
    source.begin("run", "name: test\n")
    folder.begin("replay", "name: test\nsource: not this one\n", source)
    assert (folder.kind, folder.source()) == ("replay", source.path)
    assert (source.kind, source.source()) == ("run", None)
    with pytest.raises(FedsimError, match=r"already holds a run\. Remedy"):
        source.begin("run", "name: other\n")
