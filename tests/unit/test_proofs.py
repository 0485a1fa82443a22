"""Proofs of learning: bytes, seals, ledger, initial weights, and verdicts on honest and changed ones."""

import functools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, LocalWork, batch_digest, honest, sgd_step, weights_of
from fedsim.core.types import Task, Verdict
from fedsim.data.synthetic import synthetic
from fedsim.defenses.integrity.proof.checkpoints import Malformed
from fedsim.defenses.integrity.proof.expected import Expected, Thoroughness
from fedsim.defenses.integrity.proof.initialisation import initial_problem, uniform_reach
from fedsim.defenses.integrity.proof.proof import Proof, from_bytes, proof_of, to_bytes
from fedsim.defenses.integrity.proof.sampling import chosen_places
from fedsim.defenses.integrity.proof.seal import HEAD, BadSignature, Unreadable, seal, unseal
from fedsim.defenses.integrity.proof.verify import verify
from fedsim.integrity.training import CentralTraining, batch_at, central_indices, train_centrally
from fedsim.integrity.verify import batches_at
from fedsim.models.lenet5 import lenet5
from fedsim.models.mlp import mlp
from fedsim.storage import ledger
from fedsim.storage.folder import Storage

SIGNER, READER = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
DATA = synthetic(shape=(1, 8, 8), num_classes=4, train_size=96, test_size=8)


def fresh(number: int) -> torch.nn.Module:
    torch.manual_seed(500 + number)
    return mlp(DATA.task, width=6).eval()


@pytest.fixture(scope="module")
def training() -> CentralTraining:
    return CentralTraining(
        fresh=fresh,
        train=DATA.train,
        task=DATA.task,
        steps=12,
        batch_size=16,
        learning_rate=0.1,
        precision="float32",
        seed=3,
        keys=None,
        threads=1,
        study=(),
        intervals=(1,),
        batch_sizes=(8,),
    )


@pytest.fixture(scope="module")
def proof(training: CentralTraining) -> Proof:
    torch.set_num_threads(1)  # as in the tests
    return proof_of(train_centrally(training, 1), subject="twelve steps", initial="random")


@pytest.fixture(scope="module")
def sealed(proof: Proof) -> bytes:
    return seal(to_bytes(proof), SIGNER, READER.public_key())


@pytest.fixture(scope="module")
def judge(training: CentralTraining) -> Callable[..., Verdict]:
    model = fresh(0)

    def make(
        content: bytes,
        reveal: Callable[..., Sequence[Batch]] | None = None,
        *,
        top: int = 1,
        random: int = 1,
        seed: int = 0,
        **known: object,
    ) -> Verdict:
        expected = Expected(
            model=model,
            task=DATA.task,
            signer=SIGNER.public_key(),
            reader=READER,
            **{"learning_rate": 0.1, "steps": 12} | known,
        )
        how = Thoroughness(top=top, random=random)
        return verify(content, expected, how, reveal or batches_at(training), generator(seed, "challenge"))

    return make


def test_a_proof_survives_its_bytes(proof: Proof) -> None:
    content = to_bytes(proof)
    again = from_bytes(content)
    assert to_bytes(again) == content
    assert again.trace.digests == proof.trace.digests
    for one, other in zip(again.trace.checkpoints, proof.trace.checkpoints, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_honest_proof_is_accepted_with_a_distance_of_zero(judge, sealed: bytes) -> None:
    verdict = judge(sealed, top=12, fresh=lambda number: weights_of(fresh(number + 1)))
    assert verdict.accepted, verdict.reason
    assert verdict.distance == 0
    assert (verdict.recomputed, verdict.steps) == (12, 12)


def test_ten_thousand_changed_bytes_are_all_rejected(judge, sealed: bytes) -> None:
    chance = random.Random(1)
    checks: dict[str, int] = {}
    for _ in range(10_000):
        changed = bytearray(sealed)
        for _ in range(chance.choice((1, 1, 1, 2, 8))):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        if bytes(changed) == sealed:
            continue
        verdict = judge(bytes(changed))
        assert not verdict.accepted
        assert verdict.reason
        checks[verdict.check] = checks.get(verdict.check, 0) + 1
    assert set(checks) == {"form", "signature"}  # every byte is signed


def test_truncated_and_oversized_files_are_malformed(judge, sealed: bytes) -> None:
    chance = random.Random(2)
    for _ in range(1_000):
        short = sealed[: chance.randrange(len(sealed))]
        for content in (short, sealed + chance.randbytes(chance.randrange(1, 50))):
            assert judge(content).check == "form"
    huge = (2**63).to_bytes(8, "little")
    assert (
        "are there" in judge(sealed[: HEAD - 8] + huge + sealed[HEAD:]).reason
    )  # nothing is allocated for it


def test_a_prover_cannot_make_the_reader_allocate_what_is_not_there(proof: Proof) -> None:
    content = to_bytes(proof)
    length = int.from_bytes(content[:4], "little")
    header = json.loads(content[4 : 4 + length])

    def with_header(**changes: object) -> bytes:
        text = json.dumps(header | changes, sort_keys=True, separators=(",", ":")).encode()
        return len(text).to_bytes(4, "little") + text + content[4 + length :]

    cases = {
        "expected .* bytes": {"tensors": [["w", [2**39, 2**39], "<f4"]]},
        "a name is there twice": {"tensors": [["w", [1], "<f4"], ["w", [1], "<f4"]]},
        "version 2 is not known": {"version": 2},
        "expected a header with the keys": {"extra": 1},
        "learning_rate: expected float": {"learning_rate": True},
        "learning_rate: expected a positive": {"learning_rate": -1.0},
        "data: expected a SHA-256": {"data": "x"},
        "expected sizes and digests of 1000 steps": {"steps": 1000},
        "steps: expected a positive": {"steps": 0},
        "every: expected a positive": {"every": 0},
        "precision": {"precision": "float8"},
    }
    for words, changes in cases.items():
        with pytest.raises(Malformed, match=words):
            from_bytes(with_header(**changes))
    text = json.dumps(header).encode()
    with pytest.raises(Malformed, match="canonical"):
        from_bytes(len(text).to_bytes(4, "little") + text + content[4 + length :])
    for bad in (b"", b"\x00", b"[" * 100_000, (3).to_bytes(4, "little") + b"NaN"):
        with pytest.raises(Malformed):
            from_bytes(bad)


def test_changed_pixels_and_labels_are_found_by_their_digest(judge, training, sealed: bytes) -> None:
    show, chance = batches_at(training), random.Random(3)
    for number in range(300):

        def tampered(steps, indices, number=number):
            batches = list(show(steps, indices))
            images, labels = batches[0].images.clone(), batches[0].labels.clone()
            if number % 3 == 0:
                labels[chance.randrange(len(labels))] += 1
            else:  # any pixel, the interior included, by the least amount
                flat = images.view(-1)
                place = chance.randrange(len(flat))
                flat[place] = torch.nextafter(flat[place], torch.tensor(2.0))
            batches[0] = Batch(images=images, labels=labels)
            return batches

        verdict = judge(sealed, tampered, seed=number)
        assert (verdict.accepted, verdict.check) == (False, "data")


@pytest.mark.parametrize(
    ("reveal", "words"),
    [
        (lambda steps, indices: [], "1 batches asked for, 0 shown"),
        (lambda steps, indices: (_ for _ in ()).throw(FedsimError("no answer")), "not shown: no answer"),
    ],
)
def test_data_that_is_not_shown_is_a_rejection(judge, sealed: bytes, reveal, words: str) -> None:
    verdict = judge(sealed, reveal)
    assert (verdict.accepted, verdict.check) == (False, "data")
    assert words in verdict.reason


def forged(
    batch_of: Callable[[Batch], Batch], training: CentralTraining
) -> tuple[bytes, Callable[..., list[Batch]]]:
    """Train on what is no data, and prove it without a flaw."""
    model = fresh(0)
    work = LocalWork(
        round=1,
        client=0,
        model=model,
        sent=weights_of(model),
        steps=12,
        learning_rate=0.1,
        every=1,
        indices=lambda step: central_indices(training, step),
        batch=lambda indices: batch_of(batch_at(training, indices)),
        task=training.task,
        owned=torch.arange(len(training.train.labels)),
        generator=torch.Generator(),
    )
    trace, used = honest(work).trace, work.own_batches()
    sealed = seal(to_bytes(proof_of(trace, subject="forged", initial="random")), SIGNER, READER.public_key())
    return sealed, lambda steps, _: [used[step] for step in steps]


@pytest.mark.parametrize(
    ("batch_of", "words"),
    [
        (lambda b: Batch(images=b.images, labels=torch.zeros(16, 4)), "16 labels of int64, got (16, 4)"),
        (lambda b: Batch(images=b.images * 1000, labels=b.labels), "pixels in [0, 1]"),
        (lambda b: Batch(images=-b.images, labels=b.labels), "pixels in [0, 1]"),
        (
            lambda b: Batch(images=b.images[:1] * 0, labels=b.labels[:1]),
            "images (16, 1, 8, 8) of float32, got (1,",
        ),
    ],
    ids=["shares of no class", "bright", "dark", "one black image"],
)
def test_what_is_no_data_proves_nothing(judge, training, batch_of, words: str) -> None:
    """Its gradient can be anything, none included: steps on it are valid, and worth nothing."""
    verdict = judge(*forged(batch_of, training))
    assert (verdict.accepted, verdict.check) == (False, "data")
    assert words in verdict.reason


@pytest.mark.parametrize(
    "shown",
    [
        Batch(images=torch.zeros(16, 1, 8, 8), labels=torch.full((16,), 9)),
        Batch(images=torch.full((16, 1, 8, 8), torch.nan), labels=torch.zeros(16, dtype=torch.int64)),
        Batch(images=torch.zeros(16, 1, 8, 8).double(), labels=torch.zeros(16, dtype=torch.int64)),
        Batch(images=torch.zeros(16, 1, 8, 8), labels=torch.zeros(32, dtype=torch.int64)),
        Batch(images=torch.zeros(0), labels=torch.zeros(0, dtype=torch.int64)),
    ],
)
def test_shown_data_of_any_form_is_a_verdict(judge, sealed: bytes, shown: Batch) -> None:
    assert judge(sealed, lambda steps, indices: [shown] * len(steps)).check == "data"


def test_long_words_of_a_prover_are_cut(judge, proof: Proof) -> None:
    weights = tuple({"x" * 200_000: torch.zeros(1)} for _ in proof.trace.checkpoints)
    trace = type(proof.trace)(**{**proof.trace.__dict__, "checkpoints": weights})
    long = proof_of(trace, subject="long", initial="random")
    verdict = judge(seal(to_bytes(long), SIGNER, READER.public_key()))
    assert verdict.check == "model"
    assert len(verdict.reason) < 600


def test_claims_that_need_no_training_are_checked_first(judge, proof: Proof, sealed: bytes) -> None:
    assert judge(sealed, round=2).check == "identity"
    assert judge(sealed, learning_rate=0.2).check == "settings"
    assert judge(sealed, steps=11).check == "settings"
    assert judge(sealed, every=3).check == "settings"  # fewer steps would be looked at
    assert judge(sealed, batch_size=32).check == "settings"
    assert judge(sealed, num_examples=10**9).check == "settings"
    assert judge(sealed, every=1, batch_size=16, num_examples=12 * 16).accepted
    assert judge(sealed, parent=proof.trace.checkpoints[0]).check == "initial"  # it says: random
    assert judge(sealed, received={}).check == "reply"
    tripled = {name: 3 * tensor for name, tensor in proof.trace.checkpoints[-1].items()}
    late = Proof(**{**proof.__dict__, "trace": proof.trace, "parent": "0" * 64})
    assert judge(seal(to_bytes(late), SIGNER, READER.public_key())).check == "initial"
    assert judge(sealed, fresh=lambda number: tripled).check == "initial"  # nothing like those


def test_seals_are_of_one_writer_for_one_reader(sealed: bytes) -> None:
    other, stranger = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    with pytest.raises(BadSignature):
        unseal(sealed, other.public_key(), READER)
    with pytest.raises(Unreadable, match="another verifier"):
        unseal(sealed, SIGNER.public_key(), stranger)
    assert unseal(sealed, SIGNER.public_key(), READER).time > 1_700_000_000
    assert seal(b"x", SIGNER, READER.public_key()) != seal(b"x", SIGNER, READER.public_key())


def test_a_ledger_shows_what_was_changed_and_mends_what_was_cut(tmp_path: Path) -> None:
    storage, path = Storage(tmp_path), tmp_path / "ledger.jsonl"
    for number in range(30):
        ledger.append(storage, path.name, "proof", f"{number:064x}", 1, round=1, client=number)
    assert [entry.client for entry in ledger.read(path)] == list(range(30))
    lines = path.read_bytes().splitlines(keepends=True)
    for broken in (
        lines[1:],
        lines[:3] + lines[4:],
        [lines[0].replace(b'"round":1', b'"round":2'), *lines[1:]],
    ):
        (tmp_path / "broken").write_bytes(b"".join(broken))
        with pytest.raises(FedsimError, match="the chain is broken"):
            ledger.read(tmp_path / "broken")
    path.write_bytes(path.read_bytes()[:-20])  # as a kill leaves it
    ledger.append(storage, path.name, "proof", "0" * 64, 1, round=2, client=0)
    assert [entry.number for entry in ledger.read(path)] == list(range(30))


def test_largest_updates_of_each_epoch_and_others_at_random(proof: Proof) -> None:
    trace = proof.trace
    gaps = [
        float(torch.cat([(b[n] - a[n]).flatten() for n in a]).norm())
        for a, b in zip(trace.checkpoints, trace.checkpoints[1:], strict=False)
    ]
    places = chosen_places(trace, Thoroughness(top=2, random=1, epoch=6), generator(1))
    for start, chosen in ((0, places[:3]), (6, places[3:])):
        epoch = sorted(range(start, start + 6), key=lambda place: -gaps[place])
        assert chosen[:2] == epoch[:2]
        assert chosen[2] in epoch[2:]
    assert sorted(chosen_places(trace, Thoroughness(top=3, random=99), generator(1))) == list(range(12))


@pytest.mark.slow
def test_trained_weights_are_told_from_fresh_ones_after_a_step_or_few() -> None:
    task = Task(input_shape=(1, 28, 28), num_classes=10)

    @functools.cache
    def draw(number: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(number)
        return weights_of(lenet5(task))

    assert [initial_problem(draw(100 + number), draw) for number in range(40)] == [None] * 40
    torch.manual_seed(7)
    model = lenet5(task)
    batch = Batch(images=torch.rand(64, 1, 28, 28), labels=torch.randint(10, (64,)))
    for _ in range(5):
        sgd_step(model, batch, 0.1)
    assert "reaches" in str(initial_problem(weights_of(model), draw))
    assert uniform_reach(torch.randn(5000).double()) is None
    assert uniform_reach((torch.rand(50_000).double() - 0.5) * 4) == pytest.approx(2, rel=1e-3)


def test_constant_tensors_must_be_what_they_are() -> None:
    norm = {"weight": torch.ones(3)}
    assert initial_problem(norm, lambda number: norm) is None
    assert "expected 1 everywhere" in str(
        initial_problem({"weight": torch.ones(3) * 1.01}, lambda number: norm)
    )


def test_half_precision_checkpoints_halve_the_size_and_fail_a_tight_delta(judge, proof: Proof) -> None:
    blurred = tuple(
        {name: tensor.half().float() for name, tensor in weights.items()}
        for weights in proof.trace.checkpoints
    )
    trace = type(proof.trace)(**{**proof.trace.__dict__, "checkpoints": blurred})
    half = Proof(**{**proof_of(trace, subject="half", initial="random").__dict__, "precision": "float16"})
    content = to_bytes(half)
    assert len(content) < 0.62 * len(to_bytes(proof))
    assert judge(seal(content, SIGNER, READER.public_key())).check == "settings"
    assert judge(seal(content, SIGNER, READER.public_key()), precision="float16").check == "step"


def test_batches_are_named_by_their_examples(training: CentralTraining) -> None:
    indices = central_indices(training, 0)
    batch = batch_at(training, indices)
    assert batch_digest(batch) == batch_digest(
        Batch(images=batch.images.clone(), labels=batch.labels.clone())
    )
    assert batch_digest(batch) != batch_digest(Batch(images=batch.images, labels=batch.labels.int()))
    wide = Batch(images=batch.images.view(16, 1, 4, 16), labels=batch.labels)
    assert batch_digest(batch) != batch_digest(wide)
