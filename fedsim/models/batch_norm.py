"""BatchNorm as a federation's clients run it: on running statistics, or on those of the private batch."""

from torch import nn

from fedsim.core.types import BatchNormMode


def set_batch_norm(model: nn.Module, mode: BatchNormMode) -> None:
    """Let the BatchNorm layers use their running statistics (eval) or the batch's own (train).

    Running statistics never move: they are no parameters, so they do not travel, and every client and
    attack starts from the same ones.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train(mode == "train")
            module.track_running_stats = mode == "eval"
