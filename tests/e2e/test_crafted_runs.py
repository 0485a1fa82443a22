"""Crafted weights inside Flower rounds: by client, now and then, noticed, and under secure aggregation."""

import dataclasses

import numpy as np
import pytest
import torch
from flwr.app import Message

from fedsim.core import masking
from fedsim.core.interfaces import Attack, Behaviour
from fedsim.core.types import Reconstruction
from fedsim.flower.engines.inline import InlineGrid
from fedsim.flower.masked_client import STAGE
from fedsim.lab.experiment import run
from fedsim.storage.runfolder import RunFolder

WIDE = ("model=mlp", "model.depth=2", "model.width=120", "federation.batch_size=6", "federation.rounds=3")
METRICS = ("metric=[recovered,certified,psnr]",)


def metrics(folder: RunFolder) -> dict[str, float]:
    return folder.summary()["metrics"]


@pytest.mark.slow
def test_crafted_now_and_then_costs_no_accuracy_but_the_rounds_lost(play_small) -> None:
    settings = ("attack=imprint", "attack.directions=3", "attack.levels=1", "attack.every=2")
    settings = (*settings, "federation.clients=1")
    folder = play_small(*WIDE, *METRICS, *settings, folder="crafted")
    assert {round for round, _ in folder.observed()} == {1, 3}
    assert metrics(folder)["recovered"] > 0.9
    assert metrics(folder)["certified"] > 0.8
    assert folder.summary()["baseline"]["recovered"] == 0
    loss = {result.round: result.loss for result in folder.history()}
    assert loss[1] == loss[0]  # a crafted round teaches nothing
    assert loss[2] < loss[1]
    assert loss[3] == loss[2]


def test_an_attack_may_send_each_client_its_own(small, tmp_path) -> None:
    class Own(Attack):
        keeps_honest = True

        def craft(self, model, task, round, weights):
            return weights

        def tailor(self, model, task, round, client, broadcast):
            name = min(broadcast)
            return broadcast if client == 0 else {**broadcast, name: broadcast[name] + client}

        def run(self, model, task, observations):
            return Reconstruction()

    folder = run(dataclasses.replace(small(), attack=Own()), tmp_path / "run")
    by_client = {seen.client: seen for seen in folder.observations(1)}
    name = min(by_client[0].sent)
    for client, seen in by_client.items():
        assert torch.equal(seen.sent[name], by_client[0].sent[name] + client)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("trap_weights", "soliton", "loki")]


@pytest.mark.parametrize("attack", ["imprint", "fishing", *SLOW])
def test_clients_that_look_refuse_by_name_and_the_run_goes_on(play_small, attack: str) -> None:
    folder = play_small(*WIDE, *METRICS, f"attack={attack}", "defense=[inspect_weights]")
    assert metrics(folder)["noticed"] == 1
    assert folder.status == "complete"
    reasons = {fault.reason.split(":")[0] + ":" + fault.reason.split(":")[1] for fault in folder.faults()}
    assert reasons == {"the client refused: inspect_weights"}
    assert folder.observed() == []
    page = (folder.path / "report.html").read_text()
    assert "inspect_weights" in page
    assert "A client noticed what it was sent, and refused to answer" in page


@pytest.mark.slow
def test_honest_rounds_are_not_refused_and_jumps_are(play_small) -> None:
    both = "defense=[inspect_weights,inspect_gradient]"
    honest = play_small(*WIDE, "attack=none", both, "federation.batch_size=12", folder="honest")
    assert metrics(honest)["noticed"] == 0
    jump = ("attack=quiet", "attack.units=0.9", "attack.every=2", "defense=[inspect_weights]")
    jumping = play_small(*WIDE, *METRICS, *jump, folder="jump")
    assert {fault.round for fault in jumping.faults()} == {2, 3}  # to crafted weights, and back from them
    assert all("change since" in fault.reason for fault in jumping.faults())


TWENTY = ("federation.clients=20", "federation.rounds=1", "model=mlp", "model.width=16", "attack=none")
MASKS = ("defense=[secure_aggregation]", "defense.secure_aggregation.protocol=masks")


def test_masks_give_the_sum_of_who_stays_and_no_message_holds_a_reply(play_small, monkeypatch) -> None:
    gone, passed = {2, 7, 8, 19}, list[Message]()
    train, plain = Behaviour.train, {}

    def leaving(self, work):
        claim = train(self, work)
        plain[work.client] = claim.update
        if work.client in gone:
            raise RuntimeError("left")
        return claim

    send = InlineGrid.send_and_receive

    def noted(self, messages, *, timeout=None):
        messages = list(messages)
        passed.extend(messages)
        for answer in send(self, messages, timeout=timeout):
            passed.append(answer)
            yield answer

    monkeypatch.setattr(Behaviour, "train", leaving)
    monkeypatch.setattr(InlineGrid, "send_and_receive", noted)
    summed = play_small(*TWENTY, "defense=[secure_aggregation]", folder="sum")
    passed.clear()
    masked = play_small(*TWENTY, *MASKS, folder="masks")
    assert {fault.client for fault in masked.faults()} == gone
    (fast,), (seen,) = list(summed.observations()), list(masked.observations())
    assert list(seen.clients) == [client for client in range(20) if client not in gone]
    assert seen.num_examples == fast.num_examples
    size = seen.num_examples // len(seen.clients)
    for name, tensor in seen.received.items():
        assert torch.allclose(tensor, fast.received[name], rtol=0, atol=1e-7)
        exact = sum(masking.fixed({name: plain[c][name]}, size, 20)[name] for c in seen.clients)
        assert torch.equal(tensor, (exact.double() / 2.0**masking.FRACTION).float() / seen.num_examples)
    assert len(passed) > 4 * 20
    told = [m.content[STAGE] for m in passed if not m.has_error() and STAGE in m.content]
    beside = sum(len(v) for record in told for v in record.values() if isinstance(v, bytes))
    assert seen.bytes == 2 * fast.bytes + beside // len(seen.clients)  # keys and shares, of all 20
    assert beside > 20 * 64
    content = b"".join(_bytes(message) for message in passed)
    for client, update in plain.items():
        for tensor in update.values():
            numbers = masking.fixed({"": tensor}, size, 20)[""]
            for secret in (tensor, tensor * size, numbers):
                assert secret.numpy().tobytes()[:64] not in content, client
        for name in ("pair", "mask", "envelope", "salt"):
            assert masking.secret(0, name, 1, client) not in content, client


def _bytes(message: Message) -> bytes:
    """Everything that a message holds."""
    if message.has_error():
        return str(message.error.reason).encode()
    found = [array.data for record in message.content.array_records.values() for array in record.values()]
    for records in (message.content.config_records, message.content.metric_records):
        for record in records.values():
            for value in record.values():
                found.append(value if isinstance(value, bytes) else repr(value).encode())
                if isinstance(value, list) and value and isinstance(value[0], float):
                    found.append(np.array(value, np.float32).tobytes())
    return b"".join(found)


def test_a_client_gives_shares_of_a_round_back_once(play_small, monkeypatch) -> None:
    """Asked for the rest of both kinds of shares, a client refuses: together they unmask one reply."""
    send, refusals = InlineGrid.send_and_receive, list[str]()

    def twice(self, messages, *, timeout=None):
        messages = list(messages)
        yield from send(self, messages, timeout=timeout)
        stage = messages[0].content.get("masking")
        if stage is not None and stage["stage"] == "unmask":
            for message in messages:
                message.content["masking"]["answered"] = []
            refusals.extend(
                str(r.error.reason) for r in send(self, messages, timeout=timeout) if r.has_error()
            )

    monkeypatch.setattr(InlineGrid, "send_and_receive", twice)
    play_small(*TWENTY, "federation.clients=5", *MASKS)
    assert len(refusals) == 5
    assert all("asked for before" in reason for reason in refusals)


@pytest.mark.slow
def test_loki_reads_every_client_out_of_the_masked_sum(play_small) -> None:
    some = ("federation.clients=4", "federation.rounds=1", "federation.batch_size=5", "attack.clients=4")
    wide = ("model=mlp", "model.depth=2", "model.width=160", *METRICS)
    for number, protocol in enumerate((MASKS[:1], MASKS)):
        folder = play_small(*some, *wide, "attack=loki", *protocol, folder=f"run{number}")
        (seen,) = folder.observations()
        assert list(seen.clients) == [0, 1, 2, 3]
        assert metrics(folder)["recovered"] > 0.8
