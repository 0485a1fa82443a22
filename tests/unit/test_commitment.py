"""What a prover binds itself to: its data, beginning, the order of its steps, a delta for its machine."""

from dataclasses import replace

import pytest
import torch

from fedsim.contracts import small_data, small_model
from fedsim.core.errors import FedsimError
from fedsim.core.lazily import Lazily
from fedsim.core.training import Batch, Commitment, load_weights, weights_of
from fedsim.data.batches import batch_indices, natural_places
from fedsim.defenses.integrity.proof.calibration import (
    Calibration,
    as_text,
    calibration_from,
    read_calibrations,
    shape_of,
)
from fedsim.defenses.integrity.proof.commitment import MerkleTree, depth_of, leaves_of, membership_problem
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.domain import copies_problem
from fedsim.defenses.integrity.proof.expected import Thoroughness
from fedsim.defenses.integrity.proof.machine import as_on, cores, machine
from fedsim.defenses.integrity.proof.reproduction import other_threads, plain_kernels, variations
from fedsim.defenses.integrity.proof.sampling import unseen_chance, wanted_at_random
from fedsim.integrity.binding import bound, commitment_to
from fedsim.integrity.training import CentralTraining, central_indices
from fedsim.models.mlp import mlp


def data(number: int) -> Batch:
    everything = small_data().train
    return Batch(images=everything.batch(torch.arange(number)), labels=everything.labels[:number])


def some(own: Batch, places: list[int]) -> Batch:
    return Batch(images=own.images[places], labels=own.labels[places])


@pytest.mark.parametrize("number", [1, 2, 3, 8, 13])
def test_every_example_is_shown_to_be_where_it_was_committed_to(number: int) -> None:
    own = data(number)
    tree = MerkleTree(leaves_of(own))
    assert tree.commitment.examples == number
    for place in range(number):
        shown = tree.show(some(own, [place]), [place])
        assert len(shown.paths) == 32 * depth_of(number)
        assert membership_problem(shown, [place], tree.commitment) is None
    everything = list(range(number))
    assert membership_problem(tree.show(own, everything), everything, tree.commitment) is None


def test_nothing_else_is() -> None:
    own = data(10)
    tree = MerkleTree(leaves_of(own))
    shown, known = tree.show(some(own, [3, 7]), [3, 7]), tree.commitment
    brighter = shown.images.clone()
    brighter[1, 0, 4, 4] = 1 - brighter[1, 0, 4, 4]
    wrong = "is not the one that was committed to"
    for batch, places, words in (
        (replace(shown, images=brighter), [3, 7], f"example 7 {wrong}"),
        (replace(shown, labels=(shown.labels + 1) % 4), [3, 7], f"example 3 {wrong}"),
        (shown, [7, 3], f"example 7 {wrong}"),
        (shown, [3, 10], "example 10 is not among the 10"),
        (replace(shown, paths=shown.paths[:-1]), [3, 7], "expected paths of 256 bytes, got 255"),
        (replace(shown, paths=b""), [3, 7], "got 0"),
        (replace(shown, paths=bytes(256)), [3, 7], wrong),
    ):
        assert words in str(membership_problem(batch, places, known))
    for other in (Commitment(root="0" * 64, examples=10), replace(known, examples=11)):
        assert wrong in str(membership_problem(shown, [3, 7], other))
    assert MerkleTree(leaves_of(some(own, [1, 0]))).commitment != MerkleTree(leaves_of(data(2))).commitment
    with pytest.raises(FedsimError, match="at least one example"):
        MerkleTree([])


def test_copies_in_a_batch_are_refused_and_an_example_drawn_twice_is_not_one() -> None:
    own = data(20)
    assert copies_problem(own, 20) is None
    assert copies_problem(some(own, [*range(18), 0, 1]), 20) is None  # some data sets have a few
    assert "3 of 20 examples are copies" in str(copies_problem(some(own, [*range(17), 0, 1, 2]), 20))
    assert copies_problem(some(own, [0] * 20), 1) is None


def seeded(number: int) -> torch.nn.Module:
    torch.manual_seed(number)
    return mlp(small_data().task, width=6)


def test_a_central_training_begins_and_goes_on_as_prover_data_and_nonce_decide() -> None:
    images = small_data()
    training = CentralTraining(
        fresh=seeded,
        train=images.train,
        task=images.task,
        steps=4,
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
    root = commitment_to(images.train).root
    first = bound(training, b"p" * 32, b"n" * 32, root)
    same = bound(training, b"p" * 32, b"n" * 32, root)
    assert first.seed == same.seed
    assert all(
        torch.equal(a, b)
        for a, b in zip(weights_of(first.fresh(0)).values(), weights_of(same.fresh(0)).values(), strict=True)
    )
    for other in (
        bound(training, b"q" * 32, b"n" * 32, root),
        bound(training, b"p" * 32, b"m" * 32, root),
        bound(training, b"p" * 32, b"n" * 32, "0" * 64),
    ):
        assert not torch.equal(central_indices(first, 0), central_indices(other, 0))
        assert not torch.equal(
            next(iter(weights_of(first.fresh(0)).values())), next(iter(weights_of(other.fresh(0)).values()))
        )


@pytest.mark.parametrize("replacement", [False, True])
def test_places_are_those_of_the_batches_of_a_federation(replacement: bool) -> None:
    labels, owned = small_data().train.labels, torch.arange(100, 50, -1)
    for step in range(7):
        indices = batch_indices(
            labels,
            owned,
            batch_size=8,
            layout="natural",
            replacement=replacement,
            seed=4,
            client=2,
            step=step,
        )
        assert torch.equal(indices, owned[natural_places(50, 8, replacement, 4, 2, step)])


def test_enough_is_done_again_to_find_one_false_interval() -> None:
    default = Thoroughness()
    assert [wanted_at_random(number, default) for number in (0, 1, 18, 19, 20, 100)] == [0, 1, 18, 19, 19, 95]
    assert unseen_chance(10, default, 1) == 0
    assert unseen_chance(101, default, 1) == pytest.approx(0.05)
    assert unseen_chance(11, Thoroughness(random=1), 1) == pytest.approx(0.9)
    assert unseen_chance(60, Thoroughness(random=1, epoch=20), 2) == pytest.approx(8 / 9)  # of ten intervals
    assert unseen_chance(1, Thoroughness(random=0), 1) == 0


MEASURED = Calibration(
    delta=1e-6,
    distance="l2",
    every=5,
    learning_rate=0.1,
    batch_size=32,
    model="m",
    machines=["here", "there"],
    intervals=10,
)


def test_a_delta_holds_for_what_it_was_measured_for_alone(tmp_path) -> None:
    fits = {"every": 5, "learning_rate": 0.1, "batch_size": 32, "model": "m", "machine": "there"}
    assert MEASURED.problem(**fits) is None
    for change, words in (
        ({"every": 6}, "for 5, not 6 k"),
        ({"learning_rate": 0.2}, "0.1, not 0.2 learning rate"),
        ({"batch_size": 8}, "32, not 8 batch size"),
        ({"model": "n"}, "another model"),
        ({"machine": "elsewhere"}, "not measured for the machine 'elsewhere'"),
    ):
        assert words in str(MEASURED.problem(**fits | change))
    path = tmp_path / "delta.json"
    path.write_text(as_text([MEASURED]))
    assert read_calibrations(tmp_path) == read_calibrations(path) == [MEASURED]
    path.write_text("[{}]")
    with pytest.raises(FedsimError, match=r"expected calibrations.*Remedy"):
        read_calibrations(path)
    for wrong in ({"delta": "x"}, {"delta": float("inf")}, {"every": True}, {"machines": [1]}):
        with pytest.raises(ValueError, match="expected"):
            calibration_from(MEASURED.__dict__ | wrong)
    one, other = ({"w": torch.zeros(size)} for size in (2, 3))
    assert shape_of(one) != shape_of(other)


def test_a_verifier_computes_as_the_prover_did() -> None:
    here, before = machine(), torch.get_num_threads()
    with plain_kernels():
        there = machine()
    assert here != there
    with as_on(there, 1):
        assert (machine(), torch.get_num_threads()) == (there, 1)
    for told in (cores() + 1, 10**9):  # a prover's word: threads beyond cores cost hundreds of times the work
        with as_on(here, told):
            assert torch.get_num_threads() == max(before, cores())
    assert (machine(), torch.get_num_threads()) == (here, before)


def test_honest_recomputations_lie_a_little_apart() -> None:
    model, own = small_model(), data(12)
    start, ends = weights_of(model), list[dict]()
    for way in variations(1):
        load_weights(model, start)
        with other_threads(1), way.around():
            for _ in range(3 if way.exact else 0):
                way.step(model, own, 0.1)
        ends.append(weights_of(model))
    apart = max(distance("l2", ends[0], other) for other in ends[1:5])
    assert 0 < apart < 1e-5


def test_items_are_made_where_somebody_looks() -> None:
    made = []
    found = Lazily(5, lambda place: made.append(place) or place * place)
    assert (len(found), found[-1], list(found[1:3]), made) == (5, 16, [1, 4], [4, 1, 2])
    assert found == (0, 1, 4, 9, 16)
    assert hash(found) == hash((0, 1, 4, 9, 16))
    with pytest.raises(IndexError):
        found[5]
