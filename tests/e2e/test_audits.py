"""Proof-of-Learning inside Flower rounds, and on the command line."""

import hashlib
import runpy
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedsim.config import build
from fedsim.config.compose import parse_text
from fedsim.core.errors import FedsimError
from fedsim.integrity.audited import check_audited
from fedsim.integrity.kept import judged_again
from fedsim.integrity.keys import make_keys
from fedsim.storage import ledger
from fedsim.storage.findings import findings
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Status

ROOT = Path(__file__).parents[2]
AUDITED = ("federation=fedavg", "federation.local_steps=4", "audit=proof_of_learning", "attack=none")
CHEATS = {  # by which check each is caught
    "free_rider": "step",
    "infinitesimal": "settings",
    "concatenation": "step",
    "blindfold": "step",
    "wrong_data": "step",
    "inverse_gradient": "initial",
    "directed_retraining": "step",
    "forger": "data",  # not what it committed to
    "rank_matched": "initial",
    "pruned": "initial",
    "hidden_jump": "step",
    "idle": "data",
    "one_batch": "order",
    "distillation": "step",
    "adversarial_data": "data",
}


def metrics(folder: RunFolder) -> dict[str, float]:
    return folder.summary()["metrics"]


def test_honest_clients_pass_with_a_distance_of_zero_and_learn_as_without(play_small) -> None:
    audited = play_small(*AUDITED, folder="audited")
    plain = play_small("federation=fedavg", "federation.local_steps=4", "attack=none", folder="plain")
    verdicts = audited.verdicts()
    assert len(verdicts) == 6
    assert all(verdict.accepted and verdict.distance == 0 for verdict in verdicts)
    assert metrics(audited)["false_rejects"] == 0
    assert metrics(audited)["recomputed"] == 1  # so few steps: all
    assert {(verdict.unseen, verdict.unpinned) for verdict in verdicts} == {(0.0, "")}
    assert "detection" not in metrics(audited)
    assert audited.history() == plain.history()
    assert ledger.check_run(audited.path)[:2] == (6, None)
    entries = ledger.read(audited.path / ledger.LEDGER)
    for kind in ("proof", "verdict"):
        found = [(entry.round, entry.client) for entry in entries if entry.kind == kind]
        assert found == [(v.round, v.client) for v in verdicts]
    assert [(e.round, e.client, e.size) for e in entries if e.kind == "data"] == [
        (1, client, 54 - (client > 0)) for client in range(3)
    ]
    assert (audited.path / "proofs" / "round_1.client_0.proof").stat().st_size == verdicts[0].bytes


GRADIENTS = ("federation=fedsgd", "audit=proof_of_learning", "attack=none")
REPEATABLE = "defense=[clip,sparsify,quantize,no_bias]"


def test_gradients_are_proved_as_one_step(play_small) -> None:
    audited = play_small(*GRADIENTS, folder="audited")
    plain = play_small("federation=fedsgd", "attack=none", folder="plain")
    assert all(verdict.accepted and verdict.distance == 0 for verdict in audited.verdicts())
    assert {(v.steps, v.recomputed, v.unpinned) for v in audited.verdicts()} == {(1, 1, "")}
    assert audited.history() == plain.history()


@pytest.mark.parametrize("federation", ["fedsgd", "fedavg"])
def test_defenses_without_chance_are_done_again(federation: str, play_small, monkeypatch) -> None:
    settings = (f"federation={federation}", "audit=proof_of_learning", "attack=none", "federation.rounds=1")
    more = (REPEATABLE, "defense.clip.max_norm=0.01", "defense.quantize.method=float16")
    assert all(verdict.accepted for verdict in play_small(*settings, *more, folder="defended").verdicts())
    monkeypatch.setattr("fedsim.flower.auditing._defended", lambda setup, reply: reply)  # as if not
    assert {v.check for v in play_small(*settings, *more, folder="other").verdicts()} == {"reply"}


@pytest.mark.parametrize("name", ["free_rider", "wrong_data", "idle", "distillation", "adversarial_data"])
def test_gradients_of_cheats_are_caught(name: str, play_small) -> None:
    played = play_small(*GRADIENTS, f"client=[{name}]", "federation.rounds=1")
    assert metrics(played)["detection"] == 1
    assert metrics(played)["false_rejects"] == 0


def test_a_ledger_may_have_a_key_that_no_seed_tells(play_small, command, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    make_keys(tmp_path / "others")
    played = play_small(*AUDITED, f"audit.keys={tmp_path / 'keys'}", "federation.rounds=1")
    told = command("verify", str(played.path), cwd=tmp_path)
    assert told.returncode == 3
    assert "Remedy: --keys DIR" in told.stderr
    right = command("verify", str(played.path), "--keys", "keys", cwd=tmp_path)
    assert (right.returncode, "signed by: the key in keys/ledger.public" in right.stdout) == (0, True)
    wrong = command("verify", str(played.path), "--keys", "others", cwd=tmp_path)
    assert (wrong.returncode, "another key than the verifier's" in wrong.stdout) == (1, True)
    drawn = [v.recomputed for v in played.verdicts()]
    assert drawn == [4, 4, 4]


def test_an_audit_counts_what_it_has_clients_send(play_small) -> None:
    played = play_small(*AUDITED, "federation.rounds=1")
    for verdict in played.verdicts():
        paths = 6 * 6 * 32  # a batch's examples, a path of six digests each
        assert verdict.shown == 4 * (6 * (8 * 8 * 4 + 8) + paths)
    assert metrics(played)["audit_bytes"] == sum(v.bytes + v.shown for v in played.verdicts()) / 3


def test_kept_proofs_are_checked_against_their_ledger(play_small, command, tmp_path: Path) -> None:
    played = play_small(*AUDITED)
    good = command("verify", str(played.path), cwd=tmp_path)
    first, second, third = good.stdout.splitlines()
    assert first == "unchanged: 6 proofs, as in the ledger", good.stderr
    assert third.startswith("signed by: the key of seed 0, which anybody can make. Remedy: --head")
    head = second.removeprefix("head: ")
    named = command("verify", str(played.path), "--head", head, cwd=tmp_path)
    assert (named.returncode, "the head is the one that was named" in named.stdout) == (0, True)
    other = command("verify", str(played.path), "--head", "0" * 64, cwd=tmp_path)
    assert other.returncode == 1
    assert f"ends at {head}, and not at the head {'0' * 64}" in other.stdout
    kept = played.path / "proofs" / "round_2.client_1.proof"
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    bad = command("verify", str(played.path), cwd=tmp_path)
    assert bad.returncode == 1
    assert "round_2.client_1.proof is not the proof that came in" in bad.stdout
    kept.unlink()
    missing = ledger.check_run(played.path)
    assert "in the ledger and not in the folder" in str(missing[1])


def test_every_edit_of_proofs_verdicts_and_ledger_is_found(play_small) -> None:
    run = play_small(*AUDITED).path
    assert ledger.check_run(run)[:2] == (6, None)
    lines, verdicts = run / ledger.LEDGER, run / "verdicts.csv"
    chain = lines.read_bytes().splitlines(keepends=True)
    table = verdicts.read_bytes()

    def rebuilt(entries: list[ledger.Entry]) -> bytes:
        """A chain as if it had always been this one."""
        previous, found = ledger.FIRST, b""
        for number, entry in enumerate(entries):
            line = replace(entry, number=number, previous=previous).line()
            previous, found = hashlib.sha256(line).hexdigest(), found + line
        return found

    entries = ledger.read(lines)
    edits = {
        "the last lines dropped": (lines, b"".join(chain[:-2]), "signed head"),
        "a chain built anew": (lines, rebuilt(entries[2:]), "signed head"),
        "a verdict turned": (verdicts, table.replace(b"True", b"False", 1), "is not what was found"),
        "a verdict dropped": (
            verdicts,
            b"".join(table.splitlines(keepends=True)[:-1]),
            "is not what was found",
        ),
        "verdicts emptied": (verdicts, b"", "is not what was found"),
        "a row put in": (verdicts, table + b"\n", "is not what was found"),
        "the same otherwise written": (verdicts, table.replace(b"True", b'"True"', 1), "was changed"),
        "another head": (run / ledger.HEAD, b"{}\n", "was changed"),
        "a proof put in": (run / "proofs" / "round_9.client_0.proof", b"x", "not in the ledger"),
    }
    for what, (path, content, words) in edits.items():
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(content)
        assert words in str(ledger.check_run(run)[1]), what
        path.unlink() if before is None else path.write_bytes(before)
    key = Ed25519PrivateKey.generate()  # a stranger's
    public = key.public_key().public_bytes_raw().hex()
    head = check_audited(run, None)[2]
    ledger.sign_head(RunFolder(run).storage, public, key.sign)
    assert "another key than the verifier's" in str(check_audited(run, head)[1])
    (run / ledger.HEAD).unlink()
    assert "no signed head" in str(ledger.check_run(run)[1])
    lines.unlink()
    assert "it was removed" in str(ledger.check_run(run)[1])


def test_an_auditor_judges_kept_proofs_again(play_small, command, tmp_path: Path) -> None:
    played = play_small(*AUDITED, "client=[hidden_jump]")
    good = command("verify", str(played.path), "--again", cwd=tmp_path)
    number = len(played.verdicts())
    assert good.returncode == 0, good.stderr
    assert f"judged again: {number} of {number} verdicts hold" in good.stdout
    turned = played.verdicts()
    cheat = next(place for place, verdict in enumerate(turned) if not verdict.accepted)
    turned[cheat] = replace(turned[cheat], accepted=True)  # a verifier that let somebody through
    folder = SimpleNamespace(path=played.path, storage=played.storage, verdicts=lambda: turned)
    experiment = build.experiment(parse_text(played.config_text()))
    differing = [one.recorded for one in judged_again(experiment, folder) if one.differs]
    assert differing == [turned[cheat]]


@pytest.mark.parametrize("cheat", CHEATS)
def test_every_cheat_is_caught_by_the_check_that_is_meant_for_it(play_small, cheat: str) -> None:
    played = play_small(*AUDITED, f"client=[{cheat}]", f"client.{cheat}.share=0.34")
    (cheater,) = played.malicious()
    for verdict in played.verdicts():
        assert verdict.accepted == (verdict.client != cheater), verdict
        if verdict.client == cheater:
            assert verdict.check == CHEATS[cheat]
    assert metrics(played)["detection"] == 1
    page = (played.path / "report.html").read_text()
    assert f"{cheat}, rejected" in page
    assert "sealed proof of learning" in page


def test_a_replayed_proof_is_of_another_round(play_small) -> None:
    played = play_small(*AUDITED, "client=[replay]", "client.replay.share=0.34", "audit.exclude_after=0")
    (cheater,) = played.malicious()
    assert [v.check for v in played.verdicts() if v.client == cheater] == ["step", "identity"]


def test_a_client_that_was_rejected_is_asked_no_more(play_small) -> None:
    cheat = ("client=[free_rider]", "client.free_rider.share=0.34", "federation.rounds=3")
    once = play_small(*AUDITED, *cheat, folder="once")
    (cheater,) = once.malicious()
    assert [v.round for v in once.verdicts() if v.client == cheater] == [1]
    assert len(once.verdicts()) == 7
    twice = play_small(*AUDITED, *cheat, "audit.exclude_after=2", folder="twice")
    assert [v.round for v in twice.verdicts() if v.client == cheater] == [1, 2]


def test_a_client_that_does_not_commit_to_its_data_is_rejected(play_small, monkeypatch) -> None:
    import fedsim.flower.strategy

    monkeypatch.setattr(fedsim.flower.strategy, "hear_commitments", lambda *_: None)  # nobody answers
    assert {(v.accepted, v.check) for v in play_small(*AUDITED).verdicts()} == {(False, "commitment")}


@pytest.mark.parametrize(("random", "caught"), [(0, 0.0), (1, 1.0)])
def test_the_largest_step_alone_does_not_see_a_blindfold(play_small, random: int, caught: float) -> None:
    played = play_small(
        *AUDITED, "client=[blindfold]", "client.blindfold.share=0.34", f"audit.random={random}"
    )
    assert metrics(played)["detection"] == caught


def test_what_a_proof_does_not_show(play_small) -> None:
    """Honest training on poisoned data; in the paper also endlessly small steps of a free learning rate."""
    poisoned = play_small(*AUDITED, "client=[wrong_data]", "client.wrong_data.shows=used", folder="poisoned")
    assert metrics(poisoned)["detection"] == 0
    tiny = ("client=[infinitesimal]", "audit.pin_learning_rate=false")
    paper = (*AUDITED, "audit=proof_of_learning_paper")
    assert metrics(play_small(*paper, *tiny, folder="tiny"))["detection"] == 0
    caught = play_small(*AUDITED, *tiny, folder="strict")
    assert {v.check for v in caught.verdicts() if not v.accepted} == {"progress"}
    assert metrics(caught)["detection"] == 1


def test_an_audit_uses_the_batch_statistics_that_clients_use(play_small) -> None:
    norm = ("model=resnet20", "data.shape=[3,16,16]", "federation.batch_norm=train", "federation.rounds=1")
    played = play_small(*AUDITED, *norm, "federation.clients=2")
    assert all(verdict.accepted and verdict.distance == 0 for verdict in played.verdicts())


def test_a_client_that_discloses_more_examples_than_it_proves_is_rejected(play_small, monkeypatch) -> None:
    import fedsim.flower.client

    real = fedsim.flower.client.MetricRecord
    monkeypatch.setattr(
        fedsim.flower.client,
        "MetricRecord",
        lambda told: real({**told, "num_examples": 10**9} if told else told),
    )
    played = play_small(*AUDITED)
    assert {verdict.check for verdict in played.verdicts()} == {"settings"}


def test_rejected_updates_do_not_count(play_small) -> None:
    loud = ("client=[free_rider]", "client.free_rider.share=0.34", "client.free_rider.noise=5.0")
    unaudited = ("federation=fedavg", "federation.local_steps=4", "attack=none")
    without = play_small(*unaudited, *loud, folder="without")
    audited = play_small(*AUDITED, *loud, folder="audited")
    weighted = play_small(
        *AUDITED, *loud, "audit.rejected_weight=1.0", "audit.exclude_after=0", folder="weighted"
    )
    assert audited.history()[-1].loss < without.history()[-1].loss
    assert weighted.history() == without.history()
    all_cheat = play_small(*AUDITED, "client=[free_rider]", "client.free_rider.share=1.0", folder="all")
    assert len({result.loss for result in all_cheat.history()}) == 1  # nothing is learnt, nothing is lost


@pytest.mark.slow
def test_verdicts_are_the_same_on_ray(play_small) -> None:
    rules = (*AUDITED, "client=[blindfold,replay]", "client.replay.share=0.34", "client.blindfold.share=0.34")
    one, other = play_small(*rules, folder="inline"), play_small(*rules, "engine=ray", folder="ray")

    def plain(folder: RunFolder) -> list[tuple[object, ...]]:
        return [(v.round, v.client, v.accepted, v.check, v.step, v.distance) for v in folder.verdicts()]

    assert plain(one) == plain(other)
    assert one.history() == other.history()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["federation=fedavg", "audit=proof_of_learning", "defense=[noise]"], "audit: plain.*Remedy"),
        ([*AUDITED, "defense=[quantize]"], "audit: plain local steps must lead to what is sent.*Remedy"),
        ([*AUDITED, "defense=[sparsify]", "defense.sparsify.error_feedback=true"], "audit: plain.*Remedy"),
        (["federation=fedavg", "client=[free_rider]", "client.free_rider.share=2"], "share in .0, 1., got 2"),
        (
            ["federation=fedavg", "client=[free_rider,replay]", "client.replay.share=0.9"],
            "come to more than 1",
        ),
        (
            ["federation=fedavg", "client=[free_rider]", "client.free_rider.share=0.1"],
            "none of 3 clients.*Remedy",
        ),
        (["federation=fedavg", "client=[free_rider]", "defense=[dp]"], "into their local steps.*Remedy"),
        ([*AUDITED, "federation.disclose=[num_examples,loss]"], "no loss is told.*Remedy"),
        ([*AUDITED, "federation.batch_size=100"], "owns 53 images, and a proof is of batches of 100.*Remedy"),
        ([*AUDITED, "audit.top=0", "audit.random=0"], "at least one step to do again"),
        ([*AUDITED, "audit.keep=off"], "audit.keep: expected true or false"),
        ([*AUDITED, "audit.delta=inf"], "audit.delta: expected a number of at least 0"),
        ([*AUDITED, "audit.distance=cosine"], "audit.distance: expected one of l1, l2, linf"),
        ([*AUDITED, "audit.top=-1"], "audit.top: expected a whole number of at least 0, got -1"),
        ([*AUDITED, "audit.delta=-1"], "audit.delta: expected a number of at least 0"),
        ([*AUDITED, "audit.distance=l3"], "audit.distance: expected one of l1"),
        ([*AUDITED, "audit.rejected_weight=2"], "audit.rejected_weight: expected a share"),
    ],
)
def test_wrong_settings_are_refused(play_small, settings: list[str], words: str) -> None:
    with pytest.raises(FedsimError, match=words):
        play_small(*settings)


@pytest.mark.parametrize("content", [b"", b"FEDSIMPL", b"\xff" * 1000, "text", 7, [1, 2]])
def test_what_is_no_proof_is_a_verdict_and_no_crash(play_small, monkeypatch, content: object) -> None:
    from fedsim.core.interfaces import Behaviour

    monkeypatch.setattr(Behaviour, "send", lambda self, proof, previous: content)
    played = play_small(*AUDITED)
    assert {(verdict.accepted, verdict.check) for verdict in played.verdicts()} == {(False, "form")}


def test_a_proof_is_made_and_verified_on_the_command_line(tmp_path: Path, command) -> None:
    small = ("model=mlp", "model.width=20", "proof.steps=30", "audit.every=5", "proof.keys=keys")
    assert command("keys", "keys", cwd=tmp_path).returncode == 0
    assert (tmp_path / "keys" / "prover.secret").stat().st_mode & 0o077 == 0
    with pytest.raises(FedsimError, match="never replaced"):
        make_keys(tmp_path / "keys")
    made = command("prove", *small, "hydra.run.dir=made", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    path = made.stdout.splitlines()[-1] + "/training.proof"
    few = command("verify", path, *small, "audit.random=1", cwd=tmp_path)
    assert few.returncode == 0, few.stderr
    assert few.stdout.startswith("accepted: 10 of 30 steps done again")
    assert "one false interval went unseen: 0.8\n" in few.stdout  # one of the five beside the largest
    assert "the prover's own word: nothing\n" in few.stdout
    good = command("verify", path, *small, cwd=tmp_path)
    assert good.stdout.startswith("accepted: 30 of 30 steps done again")
    assert "largest distance 0 of" in good.stdout
    content = Path(path).read_bytes()
    (tmp_path / "short.proof").write_bytes(content[:-5])
    malformed = command("verify", "short.proof", *small, cwd=tmp_path)
    assert malformed.returncode == 2
    assert malformed.stdout.startswith("rejected: form: expected")
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    (tmp_path / "changed.proof").write_bytes(changed)
    rejected = command("verify", "changed.proof", *small, cwd=tmp_path)
    assert rejected.returncode == 1
    assert rejected.stdout == "rejected: signature: the signature does not fit the content\n"
    assert command("verify", "nowhere.proof", *small, cwd=tmp_path).returncode == 3
    assert "already holds a run" in command("prove", *small, "hydra.run.dir=made", cwd=tmp_path).stderr
    played = RunFolder(tmp_path / "made")
    assert (played.kind, played.status) == ("proof", Status.COMPLETE)
    assert played.summary()["bytes"] == len(content)
    page = (played.path / "report.html").read_text()
    assert f"{len(content):,} bytes" in page
    (played.path / "report.html").unlink()
    assert command("report", "made", cwd=tmp_path).returncode == 0
    assert (played.path / "report.html").read_text() == page


def test_a_model_is_owned_by_who_has_its_proof_and_that_of_its_parent(tmp_path: Path, command) -> None:
    small = ("model=mlp", "model.width=20", "proof.steps=6")
    for name, more in (("one", ()), ("two", ("proof.parent=one/model.safetensors",))):
        made = command("prove", *small, *more, f"hydra.run.dir={name}", cwd=tmp_path)
        assert made.returncode == 0, made.stderr
    own = command("verify", "one/model.safetensors", "one/training.proof", *small, cwd=tmp_path)
    assert own.returncode == 0, own.stdout + own.stderr
    other = command("verify", "two/model.safetensors", "one/training.proof", *small, cwd=tmp_path)
    assert (other.returncode, "the model is not the one" in other.stdout) == (1, True)
    alone = command("verify", "two/training.proof", *small, cwd=tmp_path)
    assert (alone.returncode, "a parent that is not known here" in alone.stdout) == (1, True)
    chain = ("--parent", "one/training.proof")
    tuned = command("verify", "two/model.safetensors", "two/training.proof", *chain, *small, cwd=tmp_path)
    assert tuned.returncode == 0, tuned.stdout + tuned.stderr
    broken = bytearray((tmp_path / "one" / "training.proof").read_bytes())
    broken[-1] ^= 1
    (tmp_path / "broken.proof").write_bytes(broken)
    orphan = command("verify", "two/training.proof", "--parent", "broken.proof", *small, cwd=tmp_path)
    assert (orphan.returncode, "its parent: signature" in orphan.stdout) == (1, True)


def test_a_proof_carries_what_its_delta_was_measured_for(tmp_path: Path, command) -> None:
    small = ("model=mlp", "model.width=20", "proof.steps=6", "proof.intervals=[1,2]")
    done = command("calibrate", *small, "hydra.run.dir=measured", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    bound = (*small, "proof.calibration=measured")
    assert command("prove", *bound, "hydra.run.dir=made", cwd=tmp_path).returncode == 0
    good = command("verify", "made/training.proof", *bound, cwd=tmp_path)
    assert good.returncode == 0, good.stdout + good.stderr
    deltas = tmp_path / "measured" / "delta.json"
    deltas.write_text(
        deltas.read_text().replace('"delta": ', '"delta": 1')
    )  # the verifier has measured another
    bad = command("verify", "made/training.proof", *bound, cwd=tmp_path)
    assert (bad.returncode, "calibration: the proof was made for another" in bad.stdout) == (1, True)
    unfit = command("prove", *bound, "audit.every=3", "hydra.run.dir=unfit", cwd=tmp_path)
    assert unfit.returncode == 1
    assert "none of 2 was measured for l2, k=3" in unfit.stderr


def test_no_memory_is_no_verdict(tmp_path: Path, command, monkeypatch) -> None:
    from fedsim.integrity import verify

    def greedy(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(verify, "judged", greedy)
    small = ("model=mlp", "model.width=20", "proof.steps=2")
    assert command("prove", *small, "hydra.run.dir=made", cwd=tmp_path).returncode == 0
    done = command("verify", "made/training.proof", *small, cwd=tmp_path)
    assert (done.returncode, "could not be judged" in done.stderr) == (3, True)


def test_a_proof_of_keys_that_nobody_named_is_not_judged(tmp_path: Path, command) -> None:
    small = ("model=mlp", "model.width=20", "proof.steps=4")
    for name in ("keys", "others"):
        make_keys(tmp_path / name)
    made = command("prove", *small, "proof.keys=keys", "hydra.run.dir=made", cwd=tmp_path)
    path = made.stdout.splitlines()[-1] + "/training.proof"
    unnamed = command("verify", path, *small, cwd=tmp_path)
    assert (unnamed.returncode, unnamed.stdout) == (3, "")
    assert "could not be judged" in unnamed.stderr
    assert "Remedy: proof.keys=DIR" in unnamed.stderr
    wrong = command("verify", path, *small, "proof.keys=others", cwd=tmp_path)  # these were named: a verdict
    assert (wrong.returncode, wrong.stdout) == (
        1,
        "rejected: signature: signed by another key than the prover's\n",
    )
    seeded = (
        command("prove", *small, "hydra.run.dir=seeded", cwd=tmp_path).stdout.splitlines()[-1]
        + "/training.proof"
    )
    assert command("verify", seeded, *small, cwd=tmp_path).returncode == 0
    changed = bytearray(Path(seeded).read_bytes())
    changed[len(changed) // 2] ^= 1
    Path(seeded).write_bytes(changed)
    assert command("verify", seeded, *small, cwd=tmp_path).returncode == 1  # of the seed's keys, and changed
    (tmp_path / "none.proof").write_bytes(b"no proof")
    assert command("verify", "none.proof", *small, cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("arguments", [["--help"], ["-x"], [], ["a", "b"], ["keys=a"]])
def test_keys_are_made_only_in_a_folder_that_is_named(tmp_path: Path, command, arguments: list[str]) -> None:
    done = command("keys", *arguments, cwd=tmp_path)
    assert done.returncode == (0 if arguments == ["--help"] else 1)
    assert "Usage: fedsim keys" in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


def test_without_an_audit_there_is_none(small) -> None:
    assert small("audit=none").audit is None
    assert small(*AUDITED).audit.keep


@pytest.mark.slow
def test_a_calibration_prints_what_separates_honest_from_false(tmp_path: Path, command) -> None:
    small = ("model=mlp", "model.width=20", "proof.steps=20", "proof.intervals=[1,10]")
    studies = "proof.study=[reproduction,initialisation,concatenation,costs,revealed]"
    done = command("calibrate", *small, studies, "hydra.run.dir=made", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [
        line.split(",")
        for line in Path(done.stdout.splitlines()[-1], "calibration.csv").read_text().splitlines()
    ]
    found = {",".join(row[:-1]): float(row[-1]) for row in rows[1:]}
    text = "\n".join(found)
    assert 'reproduction,"k=1, the same",l2' in text
    same = [value for name, value in found.items() if '"k=1, the same",l2' in name]
    assert same == [0.0, 0.0]
    (delta,) = (value for name, value in found.items() if '"k=1, delta' in name)
    assert 0 < delta < 1e-5
    (jump,) = (value for name, value in found.items() if name.endswith("jump / largest"))
    assert jump > 10
    played = RunFolder(tmp_path / "made")
    assert (played.kind, played.status) == ("calibration", Status.COMPLETE)
    assert played.summary()["findings"] == len(rows) - 1
    page = (played.path / "report.html").read_text()
    assert "jump / largest" in page
    (played.path / "report.html").unlink()
    assert command("report", "made", cwd=tmp_path).returncode == 0
    assert (played.path / "report.html").read_text() == page
    wrong = command("calibrate", *small, "proof.study=[nonsense]", "hydra.run.dir=wrong", cwd=tmp_path)
    assert wrong.returncode == 1
    assert not (tmp_path / "wrong").exists()
    assert "proof.study: expected some of reproduction" in wrong.stderr


def test_an_interrupted_calibration_keeps_what_it_found(tmp_path: Path, command, monkeypatch) -> None:
    from fedsim.integrity import calibrate

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "concatenation", stopped)
    small = ("model=mlp", "model.width=20", "proof.steps=4", "proof.study=[revealed,concatenation]")
    assert command("calibrate", *small, "hydra.run.dir=made", cwd=tmp_path).returncode == 130
    played = RunFolder(tmp_path / "made")
    assert played.status is Status.INTERRUPTED
    assert {finding.study for finding in findings(played.storage)} == {"revealed"}
    assert "interrupted" in (played.path / "report.html").read_text()


@pytest.mark.slow
def test_a_users_own_script_is_proved_and_verified_by_the_command_line(
    command, tmp_path: Path, monkeypatch
) -> None:
    shutil.copy(ROOT / "examples" / "proved_training.py", tmp_path)
    make_keys(tmp_path / "keys")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    runpy.run_path("proved_training.py", run_name="__main__")
    asked = ("mine/training.proof", "--loop", "proved_training.train", "proof.keys=keys")
    good = command("verify", "mine/model.safetensors", *asked, cwd=tmp_path)
    assert "accepted: 30 of 30 steps done again" in good.stdout, good.stderr
    assert "taken from the prover's own word: nothing" in good.stdout
    script = tmp_path / "proved_training.py"
    (tmp_path / "other.py").write_text(script.read_text().replace("lr=0.1", "lr=0.05"))
    other = command("verify", "mine/training.proof", "--loop", "other.train", "proof.keys=keys", cwd=tmp_path)
    assert (other.returncode, other.stdout[:19]) == (1, "rejected: settings,")
