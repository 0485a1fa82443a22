"""Settings that make a run small, for tests and benchmarks. Of two that differ the later one counts."""

DATA = (
    "data=synthetic",
    "data.shape=[1,8,8]",
    "data.num_classes=4",
    "data.train_size=160",
    "data.test_size=40",
)
SOFTMAX = (*DATA, "model=softmax", "federation.batch_size=6")
SMALL = (
    *SOFTMAX,
    "federation.clients=3",
    "federation.rounds=2",
    "metric=[leacc,lnacc,irec]",
    "name=test",
)
