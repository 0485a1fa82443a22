"""A client's part of secure aggregation: keys, shares for neighbours, a masked reply, shares given back."""

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedsim.core import masking
from fedsim.core.errors import FedsimError, Refused
from fedsim.flower.nodes import client_number
from fedsim.flower.records import arrays_of, decode, encode
from fedsim.flower.setups import ClientSetup

STAGE = "masking"  # the record of a message of the protocol
TOLD = "masking told"  # in a client's state: the round whose shares it gave back


def answer(message: Message, context: Context, setup: ClientSetup) -> Message:
    """Answer the server's question of a stage."""
    told, client = message.content[STAGE], client_number(message)
    assert isinstance(told, ConfigRecord)
    round, stage = int(str(told["round"])), str(told["stage"])
    stages = {"keys": _keys, "shares": _shares, "unmask": _unmasked}
    if stage not in stages:
        raise FedsimError(f"expected one of {', '.join(stages)}, got the stage {stage!r}")
    content = stages[stage](message.content, context, setup.seed, round, client)
    return Message(RecordDict({STAGE: content}), reply_to=message)


def mask_reply(message: Message, reply: Message, setup: ClientSetup, weighted: bool) -> Message:
    """Put masks on a reply; the stage's record of the question names the neighbours' keys."""
    told, client = message.content[STAGE], client_number(message)
    assert isinstance(told, ConfigRecord)
    round, keys = int(str(told["round"])), _keys_in(message.content, "mask keys")
    disclosed = reply.content.get("disclosed")
    examples = disclosed.get("num_examples", 1) if isinstance(disclosed, MetricRecord) and weighted else 1
    numbers = masking.fixed(decode(arrays_of(reply)), float(str(examples)), int(str(told["terms"])))
    own = masking.secret(setup.seed, "mask", round, client)
    private = masking.secret(setup.seed, "pair", round, client)
    pairs = {other: masking.agreed(private, key, f"mask {round}") for other, key in keys.items()}
    reply.content["arrays"] = encode(masking.masked(numbers, own, pairs, client))
    return reply


def _keys(content: RecordDict, context: Context, seed: int, round: int, client: int) -> ConfigRecord:
    return ConfigRecord(
        {name: masking.public_key(masking.secret(seed, name, round, client)) for name in ("pair", "envelope")}
    )


def _shares(content: RecordDict, context: Context, seed: int, round: int, client: int) -> ConfigRecord:
    """Split both secrets among the neighbours, each share readable by its holder alone."""
    keys = _keys_in(content, "envelope keys")
    needed, holders = masking.threshold(len(keys)), sorted(keys)
    if len(keys) < 2:
        raise Refused(f"secure_aggregation: {len(keys)} neighbours hide nothing")
    salt = masking.secret(seed, "salt", round, client)
    pair = masking.shares(masking.secret(seed, "pair", round, client), holders, needed, salt + b"pair")
    mask = masking.shares(masking.secret(seed, "mask", round, client), holders, needed, salt + b"mask")
    envelope = masking.secret(seed, "envelope", round, client)
    return ConfigRecord(
        {
            str(other): masking.sealed(
                masking.agreed(envelope, keys[other], f"{client} to {other}"),
                pair[other] + mask[other],
                f"{round} {client} {other}".encode(),
            )
            for other in holders
        }
    )


def _unmasked(content: RecordDict, context: Context, seed: int, round: int, client: int) -> ConfigRecord:
    """Give back one share of every neighbour: of its own mask if it answered, of its key if it left."""
    if isinstance(before := context.state.get(TOLD), ConfigRecord) and int(str(before["round"])) >= round:
        raise Refused("secure_aggregation: shares of this round were asked for before: both would unmask one")
    told, keys = content[STAGE], _keys_in(content, "envelope keys")
    envelopes = content["envelopes"]
    assert isinstance(told, ConfigRecord)
    assert isinstance(envelopes, ConfigRecord)
    answered = {int(number) for number in told["answered"]}  # type: ignore[union-attr]
    there = answered & keys.keys()
    if len(there) + 1 < masking.threshold(len(keys)):
        raise Refused(
            f"secure_aggregation: {len(there)} of {len(keys)} neighbours are left, which hide too little"
        )
    context.state[TOLD] = ConfigRecord({"round": round})
    envelope, given = masking.secret(seed, "envelope", round, client), dict[str, bytes]()
    for other, key in keys.items():
        if isinstance(content_of := envelopes.get(str(other)), bytes):
            opened = masking.opened(
                masking.agreed(envelope, key, f"{other} to {client}"),
                content_of,
                f"{round} {other} {client}".encode(),
            )
            half = len(opened) // 2
            given[str(other)] = opened[half:] if other in answered else opened[:half]
    return ConfigRecord(dict(given))


def _keys_in(content: RecordDict, name: str) -> dict[int, bytes]:
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise FedsimError(f"secure_aggregation: expected a record {name!r}, got none")
    return {int(other): key for other, key in record.items() if isinstance(key, bytes)}


def is_stage(message: Message) -> bool:
    """Say whether a message is of the protocol."""
    return STAGE in message.content and not isinstance(message.content[STAGE], ArrayRecord)
