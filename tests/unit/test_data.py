from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedsim.core.errors import FedsimError
from fedsim.data.image_folder import image_folder
from fedsim.data.npz import npz
from fedsim.data.synthetic import synthetic


def arrays(**changes: np.ndarray) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    made = {
        "train_images": random.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_images": random.integers(0, 256, (3, 5, 4, 3), dtype=np.uint8),
        "test_labels": np.array([0, 1, 2]),
    }
    return made | changes


def test_an_npz_is_read_pixel_by_pixel(tmp_path: Path) -> None:
    made = arrays()
    np.savez(tmp_path / "mine.npz", **made)
    data = npz(path=str(tmp_path / "mine.npz"))
    assert (data.task.input_shape, data.task.num_classes) == ((3, 5, 4), 3)
    batch = data.train.batch(torch.tensor([4]))
    assert float(batch[0, 2, 1, 3]) == pytest.approx(made["train_images"][4, 1, 3, 2] / 255)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_images": np.zeros((6, 5, 4, 3))}, "expected images as uint8"),
        ({"train_images": np.zeros((6, 5, 4, 7), np.uint8)}, "expected 1 or 3 channels"),
        ({"train_labels": np.array([0.7] * 6)}, "expected whole-number labels"),
        ({"train_labels": np.array([0, 1])}, "expected one label for each image"),
        ({"train_labels": np.array([-1] * 6)}, "expected labels from 0"),
        ({"test_images": np.zeros((3, 4, 4, 3), np.uint8)}, "differ in shape"),
    ],
)
def test_a_wrong_npz_says_what_is_wrong(tmp_path: Path, changes, words: str) -> None:
    np.savez(tmp_path / "bad.npz", **arrays(**changes))
    with pytest.raises(FedsimError, match=words):
        npz(path=str(tmp_path / "bad.npz"))


def test_missing_truncated_and_foreign_npz_files_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "whole.npz", **arrays())
    content = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[:-200])
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez(tmp_path / "partial.npz", train_images=np.zeros((2, 2, 2), np.uint8))
    for name, words in (
        ("none.npz", "no such file"),
        ("cut.npz", r"cut\.npz"),
        ("array.npy", "no .npz archive"),
        ("partial.npz", "missing array 'train_labels'"),
    ):
        with pytest.raises(FedsimError, match=words):
            npz(path=str(tmp_path / name))
    with pytest.raises(FedsimError, match="holds label 2"):
        npz(path=str(tmp_path / "whole.npz"), num_classes=2)


def picture(path: Path, value: int, mode: str = "RGB", size: tuple[int, int] = (40, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode != "RGB" else (value,) * 3).save(path)


def test_a_folder_of_pictures_is_scaled_cut_and_labelled_by_its_folders(tmp_path: Path) -> None:
    for split in ("train", "test"):
        picture(tmp_path / split / "cat" / "a.png", 255)
        picture(tmp_path / split / "dog" / "b.jpg", 0, size=(17, 31))
        (tmp_path / split / ".ipynb_checkpoints").mkdir()
    picture(tmp_path / "train" / "dog" / "deep.png", 32768, mode="I;16")
    data = image_folder(root=str(tmp_path), size=16, channels=1)
    assert data.task.num_classes == 2
    assert data.train.labels.tolist() == [0, 1, 1]
    batch = data.train.batch(torch.arange(3))
    assert batch.shape == (3, 1, 16, 16)
    assert [round(float(image.mean()), 1) for image in batch] == [1.0, 0.0, 0.5]


def test_empty_and_broken_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FedsimError, match=rf"no classes found: looked .* {tmp_path}/train"):
        image_folder(root=str(tmp_path))
    for split in ("train", "test"):
        for name in ("a", "b"):
            picture(tmp_path / split / name / "x.png", 1)
    (tmp_path / "train" / "a" / "x.png").write_bytes(b"no picture")
    data = image_folder(root=str(tmp_path))
    with pytest.raises(FedsimError, match=r"a/x\.png: not a readable picture"):
        data.train.batch(torch.tensor([0]))


def test_synthetic_images_are_seeded_and_can_be_learnt() -> None:
    first, again = (synthetic(shape=(1, 9, 7), num_classes=5, train_size=700, test_size=50) for _ in range(2))
    assert torch.equal(first.train.pixels, again.train.pixels)
    means = torch.stack(
        [first.train.batch((first.train.labels == c).nonzero()[:, 0]).mean(0) for c in range(5)]
    )
    distances = (first.test.batch(torch.arange(50))[:, None] - means).flatten(2).norm(dim=2)
    assert float((distances.argmin(1) == first.test.labels).float().mean()) > 0.95
    with pytest.raises(FedsimError, match="at least one image a class"):
        synthetic(num_classes=10, train_size=5)
