"""How well the global model does on the test images."""

import logging

import torch
from flwr.app import MetricRecord
from torch import nn
from torch.nn import functional

from fedsim.core.training import load_weights
from fedsim.core.types import RoundResult, Weights
from fedsim.data.images import Images
from fedsim.flower.setups import ServerSetup

log = logging.getLogger(__name__)


def evaluate_round(setup: ServerSetup, round: int, weights: Weights, seconds: float) -> MetricRecord | None:
    """Test the global model after a round and keep the result."""
    if not setup.federation.evaluates(round):
        return None
    accuracy, loss = evaluate_model(setup.model, weights, setup.test, setup.device)
    setup.keep_round(RoundResult(round=round, accuracy=accuracy, loss=loss, seconds=float(f"{seconds:.3f}")))
    log.info("round %d: test accuracy %.4f, loss %.4f", round, accuracy, loss)
    return MetricRecord({"accuracy": accuracy, "loss": loss})


def evaluate_model(
    model: nn.Module, weights: Weights, images: Images, device: str, chunk: int = 500
) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy of a model with these weights."""
    load_weights(model.to(device), weights)
    correct, loss, total = 0, 0.0, int((images.labels >= 0).sum())  # next tokens: some places have none
    with torch.no_grad():
        for indices in torch.split(torch.arange(len(images.labels)), chunk):
            labels = images.labels[indices].to(device)
            logits = model(images.batch(indices).to(device))
            correct += int((logits.argmax(1) == labels).sum())
            loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
    return correct / total, loss / total
