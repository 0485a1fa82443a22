"""What a hostile reading of the verifier broke, and no longer does."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from fedsim.attacks.integrity.spoofing.bent_moments import BentMoments
from fedsim.attacks.integrity.spoofing.creep import Creep
from fedsim.commands.central import Parent, parent_of
from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Tokens
from fedsim.core.interfaces import Behaviour
from fedsim.core.randomness import generator
from fedsim.core.training import Batch
from fedsim.core.types import Task, Verdict
from fedsim.data.synthetic import synthetic
from fedsim.defenses.integrity.proof.again import Interval, Way, _nearest, _way
from fedsim.defenses.integrity.proof.checkpoints import Malformed
from fedsim.defenses.integrity.proof.claims import _check_norms, _same_bits
from fedsim.defenses.integrity.proof.domain import batch_problem
from fedsim.defenses.integrity.proof.expected import Rejected, Thoroughness, Work
from fedsim.defenses.integrity.proof.machine import cores
from fedsim.defenses.integrity.proof.proof import MOST_TEXT, Proof, canonical, from_bytes, to_bytes
from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
from fedsim.defenses.integrity.proof.seal import content_digest, reading_key, seal, unseal
from fedsim.flower.auditing import hear_commitments
from fedsim.integrity.keys import make_keys, prover_keys, verifier_keys
from fedsim.integrity.prove import prove
from fedsim.integrity.recorder import Recorder
from fedsim.integrity.shares import Share, merged
from fedsim.integrity.spoof import spoofed, spoofed_loop
from fedsim.integrity.training import CentralTraining
from fedsim.integrity.verify import Link, ProofFile, judged, read_proof, verify_file
from fedsim.integrity.verify_loop import verify_loop
from fedsim.models.softmax import softmax
from fedsim.storage.runfolder import RunFolder

DATA = synthetic(shape=(1, 6, 6), num_classes=3, train_size=60, test_size=6, seed=3)


def fresh(number: int) -> nn.Module:
    torch.manual_seed(number)
    return softmax(DATA.task)


TRAINING = CentralTraining(
    fresh=fresh,
    train=DATA.train,
    task=DATA.task,
    steps=12,
    batch_size=6,
    learning_rate=0.2,
    precision="float32",
    seed=5,
    keys=None,
    threads=1,
    study=(),
    intervals=(),
    batch_sizes=(),
)
AUDIT = ProofOfLearning()


def verdict_on(change: Callable[[Proof], Proof] | None, payload: bytes | None = None) -> Verdict:
    """What a verifier says to an honest proof that its prover changed and signed again."""
    if payload is None:
        payload = to_bytes(change(honest()) if change else honest())
    signer, reader = prover_keys(None, TRAINING.seed)
    return judged(seal(payload, signer, reader), TRAINING, AUDIT, generator(0))


def honest() -> Proof:
    sealed, _ = spoofed(TRAINING, Behaviour(), 1, None)
    return from_bytes(unseal(sealed, *verifier_keys(None, TRAINING.seed)).payload)


def header(payload: bytes, **changes: object) -> bytes:
    length = int.from_bytes(payload[:4], "little")
    text = canonical(json.loads(payload[4 : 4 + length]) | changes)
    return len(text).to_bytes(4, "little") + text + payload[4 + length :]


CALIBRATION = {
    **{"delta": 1e-6, "distance": "l2", "every": 1, "learning_rate": 0.2, "batch_size": 6, "model": "m"},
    **{"machines": ["m"], "intervals": 3},
}


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda proof: replace(proof, nonce=""), "initial"),
        (lambda proof: replace(proof, nonce="00"), "initial"),
        (lambda proof: replace(proof, data=""), "data"),
        (lambda proof: replace(proof, calibration=CALIBRATION | {"every": 10**400}), "calibration"),
        (lambda proof: replace(proof, calibration=CALIBRATION | {"batch_size": 10**400}), "calibration"),
        (lambda proof: replace(proof, round=10**30), "form"),
        (lambda proof: replace(proof, precision="float16"), "settings"),  # bits are not expected of it
    ],
)
def test_what_a_proof_says_is_compared_and_crashes_nothing(
    change: Callable[[Proof], Proof], check: str
) -> None:
    verdict = verdict_on(change)
    assert (verdict.accepted, verdict.check) == (False, check), verdict.reason


def test_a_machine_that_only_the_prover_knows_is_said_to_be_its_word() -> None:
    assert verdict_on(None).unpinned == ""
    assert verdict_on(lambda proof: replace(proof, machine="elsewhere")).unpinned == "machine"
    assert verdict_on(lambda proof: replace(proof, libraries={})).unpinned == "machine"
    more = verdict_on(lambda proof: replace(proof, threads=10**6))  # than there are cores: not imitated
    assert more.unpinned == ("machine" if cores() < 10**6 else "")


def test_bytes_that_would_cost_more_than_they_are_are_refused() -> None:
    proof = honest()
    payload = to_bytes(proof)
    steps = len(proof.trace.digests)
    front = int.from_bytes(payload[:4], "little") + 4
    assert verdict_on(None, payload[:front] + bytes(4) + payload[front + 4 :]).check == "form"  # no examples
    state = {"0.w": torch.zeros(2), "1.count": torch.zeros((), dtype=torch.int64)}
    trace = replace(
        proof.trace, checkpoints=[state] * (steps + 1), settings=["[]"] * (steps + 1), learning_rate=0.0
    )
    looped = to_bytes(replace(proof, trace=trace))
    assert len(from_bytes(looped).trace.settings) == steps + 1
    empty = [["0.w", [2], "<f4"], ["1.count", [], "<i8"], *([f"{n}", [0], "<f4"] for n in range(20_000))]
    from_bytes(header(looped, tensors=empty))  # tensors without numbers cost nothing for each checkpoint
    long = to_bytes(replace(proof, trace=replace(trace, settings=["[]"] * steps + [" " * (MOST_TEXT + 1)])))
    with pytest.raises(Malformed, match="at most"):
        from_bytes(long)
    for value in (float("nan"), float("inf")):
        wrong = {**state, "0.w": torch.tensor([0.0, value])}
        late = replace(trace, checkpoints=[state] * steps + [wrong])
        with pytest.raises(Malformed, match="NaN or an infinity"):
            from_bytes(to_bytes(replace(proof, trace=late)))


def test_verifiers_that_share_a_proof_judge_its_drift_by_all_of_it() -> None:
    stolen = {name: tensor + 1.0 for name, tensor in honest().trace.checkpoints[-1].items()}
    sealed, claim = spoofed(TRAINING, Creep(), 1, stolen)
    assert claim.trace is not None
    hidden = replace(
        from_bytes(unseal(sealed, *verifier_keys(None, TRAINING.seed)).payload), machine="elsewhere"
    )
    sealed = seal(to_bytes(hidden), *prover_keys(None, TRAINING.seed))
    alone, shares = judged(sealed, TRAINING, AUDIT, generator(1)), list[Share]()
    assert (alone.accepted, alone.check) == (False, "drift")
    for number in range(4):  # three intervals each: too few to see
        audit, work = ProofOfLearning(), Work()
        audit.how = replace(audit.how, share=(number, 4))
        verdict = judged(sealed, TRAINING, audit, generator(1), work=work)
        assert verdict.accepted, verdict.reason
        shares.append(Share(verdict, [work]))
    together = merged(shares)
    assert (together.accepted, together.check, together.reason) == (False, "drift", alone.reason)
    assert together.recomputed == alone.recomputed == 12


def test_shares_are_added_up_and_the_first_that_rejects_is_the_verdict() -> None:
    one = Verdict(
        round=1, client=0, accepted=True, distance=1.0, limit=3.0, recomputed=2, shown=5, seconds=2.0
    )
    two = replace(one, distance=2.0, limit=1.0, recomputed=3, shown=7, seconds=1.0)
    together = merged([Share(one, []), Share(two, []), Share(replace(one, distance=None, limit=None), [])])
    assert (together.accepted, together.distance, together.limit) == (True, 2.0, 3.0)
    assert (together.recomputed, together.shown, together.seconds) == (7, 17, 2.0)
    no = replace(two, accepted=False, check="step", reason="far")
    found = merged([Share(one, []), Share(no, []), Share(replace(no, reason="later"), [])])
    assert (found.accepted, found.check, found.reason) == (False, "step", "far")


def test_a_measured_delta_is_granted_as_far_as_an_interval_is_long() -> None:
    target = {name: tensor + 1.0 for name, tensor in honest().trace.checkpoints[-1].items()}
    sealed, _ = spoofed(TRAINING, Creep(delta=0.05, wavers=True, hides_machine=True), 1, target)
    proof = from_bytes(unseal(sealed, *verifier_keys(None, TRAINING.seed)).payload)
    hidden = seal(to_bytes(replace(proof, machine="elsewhere")), *prover_keys(None, TRAINING.seed))
    wide = ProofOfLearning()
    wide.how = replace(wide.how, calibrated=0.05)
    verdict = judged(hidden, TRAINING, wide, generator(1))
    assert (verdict.accepted, verdict.check) == (False, "step")
    assert verdict.limit is not None
    assert verdict.limit < 0.01  # one in a hundred of the way
    wide.how = replace(wide.how, widen=0.99)
    assert judged(hidden, TRAINING, wide, generator(1)).check != "step"


@pytest.mark.parametrize("wavers", [False, True])
def test_delta_is_not_the_whole_step_where_rates_are_small(wavers: bool) -> None:
    slow = replace(TRAINING, learning_rate=3e-6)
    target = {name: tensor + 1.0 for name, tensor in fresh(9).named_parameters()}
    cheat = Creep(wavers=wavers, hides_machine=True)
    for behaviour, limit in ((Behaviour(), {}), (cheat, {}), (cheat, {"widen": 0.0})):
        sealed, claim = spoofed(slow, behaviour, 1, {n: t.detach() for n, t in target.items()})
        assert claim.trace is not None
        proof = from_bytes(unseal(sealed, *verifier_keys(None, slow.seed)).payload)
        hidden = seal(to_bytes(replace(proof, machine="elsewhere")), *prover_keys(None, slow.seed))
        verdict = judged(hidden, slow, ProofOfLearning(**limit), generator(1))
        if behaviour is cheat and not limit:
            assert (verdict.accepted, verdict.check) == (False, "step")
        elif behaviour is cheat:  # a delta that counts whatever the length: half of each step may be its own
            assert verdict.check != "step"
        else:
            assert verdict.accepted, verdict.reason


def test_a_beginning_is_compared_bit_for_bit() -> None:
    first = {"w": torch.tensor([0.0, 1.0])}
    assert _same_bits(first, {"w": torch.tensor([0.0, 1.0])})
    assert not _same_bits(first, {"w": torch.tensor([-0.0, 1.0])})
    assert not _same_bits(first, {"w": torch.tensor([0.0, 1.0], dtype=torch.float64)})


def test_a_chain_of_proofs_holds_over_several_parents_with_settings_of_their_own(tmp_path: Path) -> None:
    trainings, links, parent = list[CentralTraining](), list[Link](), None
    for number, steps in enumerate((12, 6, 3)):
        made = replace(TRAINING, steps=steps, learning_rate=0.1 * (number + 1), parent=parent)
        folder = RunFolder(tmp_path / str(number))
        path = prove(made, 1, folder, name="proof", config_text="")
        parent = folder.path / "model.safetensors"
        trainings.append(made)
        links.insert(0, Link(read_proof(path), made))
    child, *parents = links
    for link in links:
        link.file.path.write_bytes(b"another in its place")  # what was read is what is judged
    works = list[Work]()
    verdict = verify_file(*child, AUDIT, generator(2), parents=parents, works=works)
    assert verdict.accepted, verdict.reason
    assert [work.steps for work in works] == [12, 6, 3]
    for wrong in ([], parents[:1], parents[1:], parents[::-1]):
        assert not verify_file(*child, AUDIT, generator(2), parents=wrong).accepted
    other = [parents[0], parents[1]._replace(training=trainings[0].__class__(**{**vars(TRAINING)}))]
    told = verify_file(*child, AUDIT, generator(2), parents=other)
    assert (told.check, "its parent: parent: its parent: settings" in told.reason) == ("parent", True)


def test_a_parent_is_named_by_a_file_and_settings_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "my proof"
    path.write_bytes(b"sealed")
    for text, overrides in (
        (str(path), []),
        (f"'{path}' proof.steps=3 seed=1", ["proof.steps=3", "seed=1"]),
    ):
        assert parent_of(text) == Parent(ProofFile(path, b"sealed"), overrides)
    with pytest.raises(FedsimError, match="expected a file"):
        parent_of("")


def test_what_is_asked_of_one_proof_does_not_tell_what_is_asked_of_the_next(tmp_path: Path) -> None:
    make_keys(tmp_path)
    audit, plain = ProofOfLearning(keys=str(tmp_path)), ProofOfLearning()
    signer, reader = prover_keys(None, 0)
    one, again, other = (seal(text, signer, reader) for text in (b"a", b"a", b"b"))
    assert one != again
    assert len({content_digest(sealed, reading_key(0)) for sealed in (one, again)}) == 1
    assert content_digest(b"no proof", reading_key(0)) != content_digest(b"none", reading_key(0))

    def drawn(audit: ProofOfLearning, sealed: bytes) -> list[int]:
        class Sent:
            round, client, seed, proof = 1, 2, 0, sealed

        return torch.randperm(50, generator=audit._challenge(Sent())).tolist()  # type: ignore[arg-type]

    assert drawn(audit, one) == drawn(audit, again) != drawn(audit, other)
    assert drawn(plain, one) == drawn(plain, other)  # of the seed: the same on every engine


IMAGES = torch.rand(40, 9, generator=generator(0, "images")) * (
    torch.arange(9) != 4
)  # a pixel is always dark
LABELS = torch.randint(0, 3, (40,), generator=generator(0, "labels"))


def adam(record: Recorder) -> None:
    model = nn.Linear(9, 3)
    trained(record, model, torch.optim.Adam(model.parameters(), lr=0.01))


def resting(record: Recorder) -> None:
    """As above, by a schedule whose rate is zero after six steps, and rises again."""
    model = nn.Linear(9, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trained(record, model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6))


def trained(record: Recorder, model: nn.Module, optimizer: torch.optim.Optimizer, *schedules) -> None:
    loader = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=8)
    for images, labels in record(loader, model, optimizer, *schedules, steps=12, every=3):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        for schedule in schedules:
            schedule.step()


@pytest.mark.parametrize(
    ("loop", "checkpoint", "machine"),
    [(adam, 1, None), (adam, 1, "elsewhere"), (resting, 2, "elsewhere")],
)
def test_an_optimizers_memory_cannot_move_weights(
    loop: Callable[[Recorder], None], checkpoint: int, machine: str | None
) -> None:
    honest_end = spoofed_loop(loop, lambda place, state: state)[1].checkpoints[-1]["0.weight"]
    sealed, trace = spoofed_loop(loop, BentMoments(bent=checkpoint).bend, machine=machine)
    moved = (trace.checkpoints[-1]["0.weight"] - honest_end).abs()
    assert float(moved[:, 4].min()) > 0.1  # of the dark pixel: a backdoor
    assert float(moved.sum(dim=0)[torch.arange(9) != 4].max()) < 1e-4
    verdict = verify_loop(sealed, loop, Thoroughness(), generator(1))
    assert (verdict.accepted, verdict.check) == (False, "bits" if machine is None else "step")
    if machine is not None:
        assert verdict.distance is not None
        assert verdict.distance < 1e-6
        assert "a step on" in verdict.reason


@pytest.mark.parametrize("loop", [adam, resting])
def test_a_loops_honest_rounding_does_not_part_a_step_on(loop: Callable[[Recorder], None]) -> None:
    def rounded(place: int, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """As another machine: off by a unit in the last place where there is anything."""
        chance = generator(place, "rounding")
        return {
            name: tensor * (1 + 1e-7 * torch.randn(tensor.shape, generator=chance))
            if not name.endswith(".step")
            else tensor
            for name, tensor in state.items()
        }

    sealed, _ = spoofed_loop(loop, rounded, machine="elsewhere")
    verdict = verify_loop(sealed, loop, Thoroughness(), generator(1))
    assert verdict.accepted, verdict.reason
    assert verdict.distance is not None
    assert verdict.distance > 0


def test_an_interval_of_a_loop_is_as_long_as_its_models_way() -> None:
    counted = {"0.w": torch.zeros(2), "0.count": torch.tensor(3), "1.step": torch.tensor(7.0)}
    after = {"0.w": torch.tensor([3.0, 4.0]), "0.count": torch.tensor(4), "1.step": torch.tensor(8.0)}
    loop = replace(honest().trace, settings=("[]",))
    how = Thoroughness()
    assert _way(loop, how, counted, after).length == 5  # and not without end, as whole numbers differ
    assert _way(honest().trace, how, counted, after).length == pytest.approx(26**0.5)
    gradient = replace(honest().trace, gradient=True)
    assert _way(gradient, how, {"w": torch.ones(1)}, {"w": torch.tensor([2.0])}).length == 2


def nearest(how: Thoroughness, claimed: float, *ends: float) -> tuple[float, float, bool]:
    """How far a claim lies from the nearest way, how far it may, and whether all were asked for."""
    ways = [[Interval(place=0, span=range(1), batches=())] for _ in ends[1:]]
    weights = [{"w": torch.tensor([value])} for value in ends]
    asked = _nearest(how, {"w": torch.tensor([claimed])}, Way(length=2.0), weights[0], ways)
    left = iter(weights[1:])
    try:
        next(asked)
        while True:
            asked.send(next(left))
    except StopIteration as ended:
        gap, limit, _ = ended.value
        return gap, limit, next(left, None) is None


def test_what_another_honest_way_leads_to_is_as_good() -> None:
    how = Thoroughness()
    assert nearest(how, 0.0, 0.0, 1.0) == (0, 1e-6, False)
    assert nearest(how, 1.0, 0.0, 0.5, 1.0) == (0, 1e-6, True)  # a ReLU fell on the other side
    assert nearest(how, 1.0, 0.0, 1.0, 0.5) == (0, 1e-6, False)
    assert nearest(how, 1.0, 0.0, 0.5, 0.5) == (1, 1e-6, True)  # nobody gets there
    assert nearest(how, 0.015, 0.0, 0.001) == (pytest.approx(0.015), pytest.approx(0.01), True)
    assert nearest(replace(how, widen=0.0), 1.0, 0.0, 1.0) == (1, 1e-6, False)  # as the paper has it


def test_a_loops_counters_do_not_hide_a_jump_far_away() -> None:
    _, trace = spoofed_loop(adam, lambda place, state: state)
    found = [{**s, "1.state.0.step": s["1.state.0.step"] + 10.0**6} for s in trace.checkpoints]
    _check_norms(replace(trace, checkpoints=found))
    found[2]["0.weight"] = found[2]["0.weight"] * 50
    with pytest.raises(Rejected, match="a checkpoint of norm"):
        _check_norms(replace(trace, checkpoints=found))


def test_a_file_of_no_proof_is_refused_before_it_is_judged(tmp_path: Path) -> None:
    with pytest.raises(FedsimError, match="expected a file"):
        read_proof(tmp_path / "none")
    other = seal(b"", *prover_keys(None, 99))
    with pytest.raises(FedsimError, match="none were named"):
        verify_file(ProofFile(tmp_path, other), TRAINING, AUDIT, generator(0))


@pytest.mark.parametrize(
    ("examples", "root", "heard"),
    [
        (5, "a" * 64, True),
        (10**12, "a" * 64, False),
        (0, "a" * 64, False),
        (True, "a" * 64, False),
        (5, "a", False),
    ],
)
def test_a_commitment_that_a_server_could_not_draw_an_order_of_is_none(
    examples: int, root: str, heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsim.flower.auditing.Message", lambda *parts: parts)  # of a run that is not there
    told = RecordDict({"commitment": ConfigRecord({"root": root, "examples": examples})})
    reply = SimpleNamespace(metadata=SimpleNamespace(src_node_id=7), has_error=lambda: False, content=told)
    kept = dict[int, object]()
    setup = SimpleNamespace(
        commitments={},
        federation=SimpleNamespace(timeout=1),
        keep_commitment=lambda round, client, one: kept.update({client: one}),
    )
    grid = SimpleNamespace(send_and_receive=lambda questions, timeout: [reply])
    hear_commitments(setup, AUDIT, grid, {3: 7}, 1)
    assert (3 in setup.commitments, 3 in kept) == (heard, heard)


def texts(tokens: list[list[int]], labels: object) -> Batch:
    return Batch(images=torch.tensor(tokens), labels=torch.tensor(labels))


@pytest.mark.parametrize(
    ("continued", "batch", "words"),
    [
        (False, texts([[1, 3], [1, 2]], [0, 1]), None),
        (False, texts([[1, 4], [1, 2]], [0, 1]), "expected tokens of the vocabulary, from 0 to 3"),
        (False, texts([[1, -1], [1, 2]], [0, 1]), "expected tokens of the vocabulary, from 0 to 3"),
        (False, texts([[1, 3], [1, 2]], [0, 4]), "expected labels from 0 to 3"),
        (False, texts([[1, 3], [1, 2]], [0, -100]), "expected labels from 0 to 3"),
        (False, texts([[1, 3]], [0]), "expected tokens (2, 2) of int64"),
        (False, texts([[0, 3], [1, 2]], [0, 1]), "expected padding behind a text alone"),
        (True, texts([[1, 3], [1, 0]], [[3, 2], [2, -100]]), None),
        (True, texts([[1, 3], [1, 2]], [[3, -1], [2, 1]]), "expected labels that are the next tokens"),
        (True, texts([[1, 3], [1, 2]], [0, 1]), "expected a next token for every token"),
    ],
)
def test_texts_are_data_too(continued: bool, batch: Batch, words: str | None) -> None:
    task = Task(
        input_shape=(2,),
        num_classes=4,
        inputs=Tokens(vocabulary=("a", "b", "c", "d"), length=2, continued=continued),
    )
    found = batch_problem(batch, 2, task, "uint8")
    assert (found is None) == (words is None)
    assert (words or "") in (found or "")
