"""What an attack guessed of some clients, drawn beside the truth, and the counts of all."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from matplotlib.figure import Figure

from fedsim.core.types import Reconstruction, Truth
from fedsim.metrics.image_matching import match_to_truth, pairing, peak_signal_to_noise
from fedsim.metrics.label_counts import true_counts
from fedsim.metrics.lpips import perceptual_distance
from fedsim.report.figures import (
    COUNTED,
    confusion_figure,
    count_table,
    label_figure,
    picture_figure,
    trace_figure,
)
from fedsim.report.sides import Sides, sides_of
from fedsim.report.threat import place_name
from fedsim.storage.runfolder import RunFolder

SHOWN = 6  # clients whose pictures and labels are drawn
PICTURES = 10  # images of each


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """Figures of guesses."""

    figures: dict[str, Figure] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)  # of images and of labels, by their figures' names
    sides: list[Sides] = field(default_factory=list)  # texts and rows of some clients
    sizes: set[int] = field(default_factory=set)  # examples in the batches that were read


def guesses_of(folder: RunFolder, attacked: list[tuple[int, int]]) -> Guesses:
    """Draw some clients' images and labels, true and guessed, and the counts of all.

    There may be 100,000 of them: each file is read once, and what is kept of it does not grow.
    """
    found = Guesses()
    traces: dict[str, Sequence[float]] = {}
    inputs = folder.inputs()
    counts, shown = torch.zeros(COUNTED, COUNTED, dtype=torch.int64), set(_spread(attacked, SHOWN))
    for round, client in attacked:
        guess, drawn = folder.guess(round, client), (round, client) in shown
        if guess is None or not (drawn or guess.class_counts is not None):
            continue
        truth, place, title = folder.truth(round, client), f"{round}_{client}", place_name(round, client)
        if truth is not None:
            found.sizes.add(len(truth.labels))
            if guess.class_counts is not None:
                true = true_counts(truth, len(guess.class_counts))
                counts += count_table(true, guess.class_counts)
        if drawn and inputs is not None:
            known = None if truth is None else dataclasses.replace(truth, inputs=inputs)
            if sides := sides_of(inputs, guess, known, title):
                found.sides.append(sides)
        if drawn and guess.images is not None and inputs is None:
            if len(guess.trace) > 1:
                traces[title] = guess.trace
            if pictures := _pictures(guess, truth, title):
                found.figures[f"pictures_{place}"], found.titles[f"pictures_{place}"] = pictures
        if drawn and (labels := _labels(guess, truth, title)):
            found.figures[f"labels_{place}"], found.titles[f"labels_{place}"] = labels, title
    if traces:
        found.figures["trace"] = trace_figure(traces)
    if counts.any():
        found.figures["confusion"] = confusion_figure(counts)
    return found


def _spread(attacked: list[tuple[int, int]], number: int) -> list[tuple[int, int]]:
    """Choose some of the attacked (round, client), spread over the rounds."""
    return attacked[:: max(1, len(attacked) // number)][:number]


def _pictures(guess: Reconstruction, truth: Truth | None, title: str) -> tuple[Figure, str] | None:
    """Draw true images beside guesses, or guesses alone; with a title."""
    assert guess.images is not None
    if truth is None:
        shown = guess.images[:PICTURES].detach()
        return picture_figure(None, shown, _sureness(guess, torch.arange(len(shown)))), title + ", guesses"
    if truth.images.shape[1:] != guess.images.shape[1:]:
        return None
    matched, true = match_to_truth(guess.images, truth.images)[:PICTURES], truth.images[:PICTURES]
    captions = [f"{psnr:.1f} dB" for psnr in peak_signal_to_noise(matched, true).tolist()]
    if true.shape[1] in (1, 3):  # what LPIPS takes
        distances = perceptual_distance(matched, true).tolist()
        captions = [f"{words}\nLPIPS {d:.3f}" for words, d in zip(captions, distances, strict=True)]
    if guess.certified is not None:
        sure = _sureness(guess, pairing(guess.images, truth.images)[:PICTURES])
        captions = [f"{words}\n{said}" for words, said in zip(captions, sure, strict=True)]
    if len(truth.images) > PICTURES:
        title += f", {PICTURES} of {len(truth.images)} images"
    if guess.residual is not None:
        title += f"; the attack's own residual: {guess.residual:.2g}"
    if guess.certified is not None:
        title += f"; certified by the attack: {int(guess.certified.sum())} of {len(guess.certified)}"
    return picture_figure(true, matched, captions), title


def _sureness(guess: Reconstruction, places: torch.Tensor) -> list[str]:
    """Say of each guess, by its place, whether the attack vouches for it; beyond the last: not found."""
    if guess.certified is None:
        return [""] * len(places)
    words = ["certified" if sure else "uncertified" for sure in guess.certified.tolist()]
    return [words[place] if place < len(words) else "not found" for place in places.tolist()]


def _labels(guess: Reconstruction, truth: Truth | None, title: str) -> Figure | None:
    """Draw restored labels, against true ones where they are known."""
    found = guess.class_presence if guess.class_counts is None else guess.class_counts
    if found is None:
        return None
    true = None if truth is None else true_counts(truth, len(found))
    return label_figure(true, found.long(), title, guess.class_counts is None)
