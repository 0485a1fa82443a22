"""Made-up text as bytes, for runs of sequence models without a corpus."""

import torch
from torch import Generator, Tensor

from fedsim.core.randomness import generator
from fedsim.core.settings import number, whole
from fedsim.core.types import Task
from fedsim.data.form import Form
from fedsim.data.images import ArrayImages, Dataset

TEXT_MEAN, TEXT_STD = (0.379,), (0.117,)  # of letters and blanks, for models that take them for pixels


def text(
    *,
    length: int = 128,
    vocabulary: int = 100,
    tone: float = 0.3,
    train_size: int = 2000,
    test_size: int = 500,
    seed: int = 0,
) -> Dataset:
    """Seeded sequences of made-up words, a byte a pixel: two classes that share most words but not all."""
    whole("data.length", length)
    whole("data.vocabulary", vocabulary, 4)
    number("data.tone", tone, least=0, most=1)
    whole("data.train_size", train_size, 2)
    whole("data.test_size", test_size, 2)
    random = generator(seed, "words")
    words = [_word(random) for _ in range(vocabulary)]
    task = Task(input_shape=(1, 1, length), num_classes=2, mean=TEXT_MEAN, std=TEXT_STD)
    return Dataset(
        task=task,
        train=_draw(words, train_size, length, tone, generator(seed, "train")),
        test=_draw(words, test_size, length, tone, generator(seed, "test")),
        form=Form(levels=tuple(sorted({0, 32, *b"".join(words)}))),
    )


def byte_images(texts: list[bytes], labels: Tensor, length: int) -> ArrayImages:
    """Take the first `length` bytes of each text, and zeros where it has fewer: uint8 (N, 1, 1, length)."""
    joined = b"".join(content[:length].ljust(length, b"\0") for content in texts)
    pixels = torch.frombuffer(bytearray(joined), dtype=torch.uint8).view(len(texts), 1, 1, length)
    return ArrayImages(pixels=pixels, labels=labels)


def _word(random: Generator) -> bytes:
    size = int(torch.randint(2, 9, (), generator=random))
    return bytes((97 + torch.randint(26, (size,), generator=random)).tolist())


def _draw(words: list[bytes], size: int, length: int, tone: float, random: Generator) -> ArrayImages:
    """Draw words: with the chance `tone` from the class's own quarter, else from the common half."""
    labels, quarter = torch.arange(size) % 2, len(words) // 4
    common = len(words) - 2 * quarter
    number = length // 3 + 1  # as many as fill the length when all are of two letters
    frequent = 1 / torch.arange(1, common + 1)  # Zipf's law
    shared = torch.multinomial(frequent, size * number, replacement=True, generator=random).view(size, number)
    own = common + labels[:, None] * quarter + torch.randint(quarter, (size, number), generator=random)
    toned = torch.rand(size, number, generator=random) < tone
    texts = [b" ".join(words[word] for word in row) for row in torch.where(toned, own, shared).tolist()]
    return byte_images(texts, labels, length)
