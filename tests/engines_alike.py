"""What every engine plays, and what must be the same on all of them."""

from fedsim.contracts import expect_same_run as same

__all__ = ["ALIKE", "same"]

# Clients remember what sparsify left out: their state has to come through every engine's processes.
ALIKE = (
    "federation=fedavg",
    "federation.clients=2",
    "federation.rounds=2",
    "defense=[noise,sparsify]",
    "defense.sparsify.error_feedback=true",
)
