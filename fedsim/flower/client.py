"""The Flower client: a round's messages in and out, and what is kept between them."""

from collections.abc import Callable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from fedsim.core.errors import FedsimError
from fedsim.core.training import Claim
from fedsim.core.types import Truth
from fedsim.flower import masked_client
from fedsim.flower.local_round import committed, defended, inspected, local_round
from fedsim.flower.nodes import client_number, failure
from fedsim.flower.records import DecodeOnce, arrays_of, decode, encode
from fedsim.flower.setups import ClientSetup
from fedsim.flower.states import ClientStates
from fedsim.storage.files import StorageError


def client_app(
    setup: Callable[[], ClientSetup], keep_truth: Callable[[Truth], None], states: ClientStates
) -> ClientApp:
    """Build the ClientApp. `setup` is called inside the process that runs the client.

    `keep_truth` is the side channel: it takes the private batch to the evaluator without a message.
    """
    decode_once = DecodeOnce()
    app = ClientApp()

    @app.query()
    def answer(message: Message, context: Context) -> Message:
        """Commit to the client's data, show an audit its batches, or take part in secure aggregation."""
        if masked_client.is_stage(message):
            return _report_errors(message, context, lambda m, c: masked_client.answer(m, c, setup()))
        if "commit" in message.content:
            told = committed(setup(), client_number(message)).commitment
            return Message(
                RecordDict({"commitment": ConfigRecord({"root": told.root, "examples": told.examples})}),
                reply_to=message,
            )
        return Message(_shown(message.content["steps"], context), reply_to=message)

    def defend(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply, made = call_next(message, context), setup()
        if made.defenses:
            given, rests = decode(arrays_of(reply)), _rests(made, context)
            leaving = defended(made, given, rests, _round(message), client_number(message))
            for position, rest in leaving.rests.items():
                context.state[f"rest {position}"] = encode(rest)
            reply.content["arrays"] = encode(leaving.reply)
            reply.content["size"] = MetricRecord({"bytes": leaving.bytes})
        return reply

    def mask(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply, made = call_next(message, context), setup()
        if not made.masks:
            return reply
        return masked_client.mask_reply(message, reply, made, "num_examples" in made.federation.disclose)

    def remember(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not setup().has_memory:
            return call_next(message, context)
        states.restore(client_number(message), context)
        reply = call_next(message, context)
        states.keep(client_number(message), _round(message), context)
        return reply

    @app.train(mods=[_report_errors, remember, mask, defend])
    def train(message: Message, context: Context) -> Message:
        made = setup()
        torch.set_num_threads(made.threads)  # sums depend on it: alike on every engine
        sent, round, client = decode_once(arrays_of(message)), _round(message), client_number(message)
        if any(defense.looks_back for defense in made.defenses):
            before, context.state["last sent"] = context.state.get("last sent"), arrays_of(message)
            inspected(made, sent, decode(before) if isinstance(before, ArrayRecord) else None)
        elif made.defenses:
            inspected(made, sent, None)
        done = local_round(made, sent, round, client)
        disclosed = MetricRecord(dict(done.disclosed))
        content = RecordDict({"arrays": encode(done.claim.update), "disclosed": disclosed})
        if made.audit is not None:
            content["proof"] = _proof(made, done.claim, round, client, context)
        if done.truth is not None:
            keep_truth(done.truth)
        return Message(content, reply_to=message)

    return app


def _proof(setup: ClientSetup, claim: Claim, round: int, client: int, context: Context) -> ConfigRecord:
    """Return the proof that a client sends, and keep what the audit may ask for."""
    assert setup.audit is not None
    proof = setup.audit.prove(claim, seed=setup.seed, round=round, client=client)
    kept = context.state.get("proof")
    previous = kept.get("sealed") if isinstance(kept, ConfigRecord) else b""
    last = previous if isinstance(previous, bytes) else b""
    sent = ConfigRecord({"sealed": setup.behaviour(client).send(proof, last)})
    context.state["proof"] = sent
    context.state["batches"] = encode(  # until the audit has asked for what it wants to see
        {
            f"{kind} {step}": getattr(batch, kind)
            for step, batch in enumerate(claim.batches)
            for kind in ("images", "labels")
        }
    )
    if setup.audit.commits and claim.trace is not None:
        tree, pairs = committed(setup, client), zip(claim.batches, claim.trace.indices, strict=True)
        paths = {str(step): tree.show(*pair).paths for step, pair in enumerate(pairs)}
        context.state["paths"] = ConfigRecord(dict(paths))
    return sent


def _shown(asked: object, context: Context) -> RecordDict:
    """Return the batches of these steps of the client's last round."""
    kept = context.state.get("batches")
    if not isinstance(asked, ConfigRecord) or not isinstance(kept, ArrayRecord):
        raise FedsimError("no batches are kept to be shown")
    steps = [int(step) for step in asked["steps"]]  # type: ignore[union-attr]
    names = [f"{kind} {step}" for step in steps for kind in ("images", "labels")]
    shown = RecordDict({"arrays": ArrayRecord({name: kept[name] for name in names})})
    if isinstance(paths := context.state.get("paths"), ConfigRecord):
        shown["paths"] = ConfigRecord({str(step): paths[str(step)] for step in steps})
    return shown


def _rests(setup: ClientSetup, context: Context) -> dict[int, dict[str, torch.Tensor]]:
    """Return what defenses took away from this client's last reply, by their position."""
    keepers = [position for position, defense in enumerate(setup.defenses) if defense.keeps_rest]
    kept = {position: context.state.get(f"rest {position}") for position in keepers}
    return {position: decode(rest) for position, rest in kept.items() if isinstance(rest, ArrayRecord)}


def _report_errors(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer an exception with an error reply of the same words on every engine."""
    try:
        return call_next(message, context)
    except StorageError:
        raise
    except (Exception, SystemExit) as error:
        return failure(message, error)


def _round(message: Message) -> int:
    return int(message.metadata.group_id)  # Flower's place for the round
