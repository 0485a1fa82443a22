"""What every engine plays, and what must be the same on all of them."""

import torch

from fedsim.storage.runfolder import RunFolder

# Clients remember what sparsify left out: their state has to come through every engine's processes.
ALIKE = (
    "federation=fedavg",
    "federation.clients=2",
    "federation.rounds=2",
    "defense=[noise,sparsify]",
    "defense.sparsify.error_feedback=true",
)


def same(left: RunFolder, right: RunFolder) -> None:
    """Compare all that was sent, received, scored and tested, bit for bit."""
    pairs = list(zip(left.observations(), right.observations(), strict=True))
    assert pairs
    for a, b in pairs:
        assert (a.round, a.client, a.num_examples) == (b.round, b.client, b.num_examples)
        for side in ("sent", "received"):
            one, two = getattr(a, side), getattr(b, side)
            assert one.keys() == two.keys()
            assert all(torch.equal(one[name], two[name]) for name in one)
    assert left.scores() == right.scores() != []
    tested = [[(r.round, r.accuracy, r.loss) for r in folder.history()] for folder in (left, right)]
    assert tested[0] == tested[1] != []
