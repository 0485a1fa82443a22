"""The Adult census table from a user's files, and how such a table becomes pixels.

Origin: Kohavi, Scaling Up the Accuracy of Naive-Bayes Classifiers (KDD 1996); UCI repository, data set 2.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Choice, Number, Row
from fedsim.core.types import Task
from fedsim.data.form import Form
from fedsim.data.images import ArrayImages, Dataset

TABLE_MEAN, TABLE_STD = (0.094,), (0.277,)  # of all pixels: most are the zeros of one-hot columns


def _choice(name: str, words: str) -> Choice:
    return Choice(name, tuple(words.split()))


COLUMNS: tuple[Number | Choice, ...] = (  # order and categories as published, "?" where it occurs
    Number("age", 17, 90, whole=True),
    _choice(
        "workclass",
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked ?",
    ),
    Number("fnlwgt", 12_285, 1_490_400, logarithmic=True, whole=True),
    _choice(
        "education",
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters "
        "1st-4th 10th Doctorate 5th-6th Preschool",
    ),
    Number("education-num", 1, 16, whole=True),
    _choice(
        "marital-status",
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse",
    ),
    _choice(
        "occupation",
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv "
        "Armed-Forces ?",
    ),
    _choice("relationship", "Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    _choice("race", "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    _choice("sex", "Female Male"),
    Number("capital-gain", 0, 99_999, logarithmic=True, whole=True),
    Number("capital-loss", 0, 4_356, logarithmic=True, whole=True),
    Number("hours-per-week", 1, 99, whole=True),
    _choice(
        "native-country",
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan "
        "Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal "
        "Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua "
        "Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands ?",
    ),
)
ROW = Row(columns=COLUMNS)
LABELS = ("<=50K", ">50K")


def adult(*, root: str) -> Dataset:
    """UCI Adult: 32,561 + 16,281 people in 108 pixels, income above 50K or not (adult.data, adult.test)."""
    folder = Path(root).expanduser().resolve()
    return table(train=_read(folder / "adult.data"), test=_read(folder / "adult.test"))


def table(*, train: ArrayImages, test: ArrayImages) -> Dataset:
    """Return the learning problem of two halves of a table."""
    task = Task(input_shape=ROW.shape, num_classes=len(LABELS), mean=TABLE_MEAN, std=TABLE_STD, inputs=ROW)
    return Dataset(task=task, train=train, test=test, form=Form(one_hot=ROW.groups))


def table_pixels(places: Sequence[Tensor]) -> Tensor:
    """Return uint8 (N, 1, 1, d): of each column shares of its range in [0, 1], or places of its category."""
    parts = []
    for column, values in zip(COLUMNS, places, strict=True):
        if isinstance(column, Number):
            parts.append(values.clamp(0, 1).mul(255).round().to(torch.uint8)[:, None])
        else:
            parts.append(torch.nn.functional.one_hot(values, len(column.categories)).to(torch.uint8) * 255)
    return torch.cat(parts, dim=1)[:, None, None, :].contiguous()


def _read(path: Path) -> ArrayImages:
    if not path.is_file():
        raise FedsimError(
            f"adult: no such file: {path}. Remedy: set data.root to the folder that holds adult.data and "
            "adult.test: data set 2 of archive.ics.uci.edu, unpacked, lines of 15 values as they come."
        )
    rows, labels = list[list[float]](), list[int]()
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if not line.strip() or line.startswith("|"):  # adult.test begins with such a remark
            continue
        *cells, label = (cell.strip() for cell in line.split(","))
        where = f"{path}, line {number}"
        if len(cells) != len(COLUMNS):
            raise FedsimError(f"{where}: expected {len(COLUMNS) + 1} values, got {len(cells) + 1}")
        rows.append([_place(column, cell, where) for column, cell in zip(COLUMNS, cells, strict=True)])
        labels.append(_category(LABELS, label.removesuffix("."), "income", where))  # adult.test has the dot
    if not rows:
        raise FedsimError(f"{path}: expected at least one row, got none. Remedy: fetch the file again.")
    columns = zip(COLUMNS, zip(*rows, strict=True), strict=True)
    places = [torch.tensor(v, dtype=None if isinstance(c, Number) else torch.int64) for c, v in columns]
    return ArrayImages(pixels=table_pixels(places), labels=torch.tensor(labels))


def _place(column: Number | Choice, cell: str, where: str) -> float:
    """Return the share of a number in its column's range, or the place of a category."""
    if isinstance(column, Choice):
        return _category(column.categories, cell, column.name, where)
    try:
        value = float(cell)
        if not 0 <= value < math.inf:
            raise ValueError
    except ValueError:
        raise FedsimError(f"{where}: {column.name}: expected a number from 0 upwards, got {cell!r}") from None
    return column.share(value)


def _category(categories: Sequence[str], cell: str, name: str, where: str) -> int:
    if cell not in categories:
        raise FedsimError(f"{where}: {name}: expected one of {', '.join(categories)}, got {cell!r}")
    return categories.index(cell)
