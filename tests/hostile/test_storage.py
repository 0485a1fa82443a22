"""Tensors come back as they were, whatever their memory looked like; files as they were written, or not."""

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from faulty_disk import FaultyDisk, PowerCut
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.types import Fault, Observation, Truth
from fedsim.storage.files import StorageError
from fedsim.storage.folder import MissingFile, Storage
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.tensors import tensor_bytes, tensors_from

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
TABLE = b"a,b\n1,2\n"


@st.composite
def views(draw: st.DrawFn) -> Tensor:
    """Tensors of all types whose memory is not what their shape says."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    numbers = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 255, shape)
    tensor = torch.from_numpy(np.asarray(numbers)).to(draw(st.sampled_from(DTYPES)))
    if draw(st.booleans()):
        tensor = tensor.permute(draw(st.permutations(range(tensor.ndim))))
    if tensor.ndim and draw(st.booleans()):
        tensor = tensor[(slice(None), slice(None, None, 2))[: tensor.ndim]]
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(draw(st.integers(0, 3)), *tensor.shape)
    if draw(st.booleans()):
        tensor = torch.from_numpy(np.asfortranarray(tensor.float().numpy())) if tensor.numel() else tensor
    return tensor


@given(st.lists(views(), max_size=3))
@settings(max_examples=150, deadline=None)
def test_tensors_of_any_layout_come_back(tensors: list[Tensor]) -> None:
    named = {f"{place}": tensor for place, tensor in enumerate(tensors)}
    back, notes = tensors_from(
        tensor_bytes(named | {"again": tensors[0]} if tensors else named, {"n": 1}), Path()
    )
    assert notes == {"n": 1}
    for name, tensor in named.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert torch.equal(back[name], tensor)
    if tensors:
        assert torch.equal(back["again"], tensors[0])


def test_an_expanded_tensor_holds_its_own_numbers_and_no_one_elses_memory() -> None:
    back, _ = tensors_from(
        tensor_bytes({"x": torch.tensor(3).expand(6), "z": torch.zeros(1).expand(200_000)}), Path()
    )
    assert back["x"].tolist() == [3] * 6
    assert not back["z"].any()


def test_truth_and_observations_of_permuted_tensors_come_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8))
    images = images.permute(0, 3, 1, 2) / 255
    folder.keep_truth(Truth(round=1, client=0, images=images, labels=torch.arange(4)[::2]))
    truth = folder.truth(1, 0)
    assert truth is not None
    assert torch.equal(truth.images, images)
    assert truth.labels.tolist() == [0, 2]
    sent = {"w": torch.randn(3, 4).T, "b": torch.ones(1).expand(5)}
    folder.keep_observation(Observation(round=1, client=0, sent=sent, received=sent, kind="update"))
    seen = folder.observation(1, 0)
    assert all(torch.equal(seen.received[name], tensor) for name, tensor in sent.items())
    assert seen.received["w"].is_contiguous()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_flipped_lost_or_added_byte_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    storage = Storage(tmp_path_factory.mktemp("store"))
    storage.write("a", bytes(range(50)))
    storage.append("t", TABLE)
    storage.append("t", b"3,4\n")
    name = data.draw(st.sampled_from(["a", "t"]))
    path = storage.root / name
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    damage = data.draw(st.sampled_from(["flip", "cut", "add"]))
    if damage == "flip":
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    elif damage == "cut":
        content = content[:place]
    else:
        content[place:place] = b"x"
    path.write_bytes(content)
    with pytest.raises(FedsimError, match=r"was changed or damaged.*Remedy"):
        storage.read(name)


def test_files_that_nobody_wrote_are_neither_read_nor_deleted(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.write("mine", b"x")
    (tmp_path / "yours").write_text("y")
    with pytest.raises(FedsimError, match=r"yours is not in its folder's manifest\. Remedy"):
        storage.read("yours")
    storage.delete(["mine", "yours"])
    assert (tmp_path / "yours").exists()
    assert not (tmp_path / "mine").exists()
    assert storage.read("mine") is None
    storage.write("mine", b"again")
    (tmp_path / "mine").unlink()
    with pytest.raises(MissingFile, match="was written, and is not there"):
        storage.read("mine")


@pytest.mark.parametrize("where", ["truth", "truth/round_1.client_0.safetensors"])
def test_links_are_not_followed(tmp_path: Path, where: str) -> None:
    folder, elsewhere = RunFolder(tmp_path / "run"), tmp_path / "elsewhere"
    folder.keep_truth(Truth(round=1, client=0, images=torch.zeros(1, 1, 2, 2), labels=torch.zeros(1).long()))
    (folder.path / where).rename(elsewhere)
    (folder.path / where).symlink_to(elsewhere)
    with pytest.raises(FedsimError, match="got a link"):
        folder.truth(1, 0)
    with pytest.raises(FedsimError, match="got a link"):
        folder.storage.delete(["truth/round_1.client_0.safetensors"])
    assert elsewhere.exists()


@pytest.mark.parametrize("line", ["../x", "/etc/passwd", "a/../../x"])
def test_a_manifest_points_nowhere_else(tmp_path: Path, line: str) -> None:
    storage = Storage(tmp_path / "run")
    storage.write("a", b"x")
    with (storage.root / "manifest.txt").open("a") as file:
        file.write(f"{'0' * 64} 0 1 {line}\n")
    with pytest.raises(FedsimError, match=r"not a line of a manifest.*Remedy"):
        storage.names()


def test_a_folder_of_the_same_name_is_another_folder(tmp_path: Path) -> None:
    for content in (b"one", b"two"):
        storage = Storage(tmp_path / "run")
        assert storage.read("a") is None
        storage.write("a", content)
        assert storage.read("a") == content
        for path in (*storage.root.glob("*"),):
            path.rmdir() if path.is_dir() else path.unlink()
        storage.root.rmdir()


def test_what_is_written_is_for_its_owner_alone(tmp_path: Path, play_small) -> None:
    before = os.umask(0o022)
    try:
        folder = play_small()
    finally:
        os.umask(before)
    for path in (folder.path, *folder.path.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), PowerCut()])
def test_whatever_a_failing_disk_leaves_is_the_old_content_or_the_new(
    tmp_path: Path, monkeypatch, error
) -> None:
    for moment in range(1, 40):
        storage = Storage(tmp_path / f"{moment}")
        storage.write("whole", b"old")
        storage.append("table", b"first\n")
        with monkeypatch.context() as patch:
            FaultyDisk(patch, storage.root, moment, error)
            try:
                storage.append("table", b"second\n")
                storage.write("whole", b"newer")
                storage.append("table", b"third\n")
                done = True
            except (StorageError, PowerCut):
                done = False
        assert storage.read("whole") in ((b"newer",) if done else (b"old", b"newer"))
        kept = storage.read("table")
        assert kept in (b"first\n", b"first\nsecond\n", b"first\nsecond\nthird\n")
        storage.append("table", b"last\n")
        assert storage.read("table") == kept + b"last\n"
        if done:
            break
    assert done
    assert moment > 10


def test_two_claims_exclude_each_other(tmp_path: Path) -> None:
    own, other = Storage(tmp_path).claimed(), Storage(tmp_path).claimed()
    with own, pytest.raises(FedsimError, match="another process is writing here"), other:
        pass
    with Storage(tmp_path).claimed():  # it is free again
        pass


def test_words_of_others_end_no_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    words = '\ud800 \x1b[31mred\r\n\x07, ,"\u202e'
    folder.keep_fault(Fault(round=1, client=0, reason=words))
    (fault,) = folder.faults()
    assert fault.reason == '\\ud800 \\x1b[31mred\\r\n\\x07, ,"\\u202e'
