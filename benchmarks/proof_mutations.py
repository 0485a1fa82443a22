"""Proofs changed at random, by a stranger or by their prover: crashes, memory, and why any is accepted."""

import copy
import functools
import random
import resource
from collections import Counter
from dataclasses import replace

from fedsim.config import build_central
from fedsim.config.compose import compose
from fedsim.core.interfaces import Behaviour
from fedsim.core.randomness import generator
from fedsim.defenses.integrity.proof.proof import Proof, from_bytes, to_bytes
from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
from fedsim.defenses.integrity.proof.sampling import chosen_places
from fedsim.defenses.integrity.proof.seal import seal, unseal
from fedsim.integrity.keys import prover_keys, verifier_keys
from fedsim.integrity.spoof import spoofed
from fedsim.integrity.training import CentralTraining
from fedsim.integrity.verify import judged

STEPS, DRAWN = 40, 20
WORDS = ("subject", "libraries", "machine", "threads", "calibration", "nonce")  # no step follows from them


def mutations(seed: int, challenges: int) -> None:
    """100 unsigned and 40 signed mutations for each challenge; softmax, 40 steps, R = 20."""
    settings = [f"proof.steps={STEPS}", "proof.batch_size=8", "proof.learning_rate=0.1", f"seed={seed}"]
    data = ["data=synthetic", "data.shape=[1,8,8]", "data.num_classes=4", "data.train_size=400"]
    config = compose(["model=softmax", *data, "audit=proof_of_learning", "name=benchmark", *settings])
    training = build_central.central_training(config)[1]
    built = functools.cache(training.drawn)  # building a model takes longer than to refuse a proof
    training = replace(training, drawn=lambda number: copy.deepcopy(built(number)), fresh=built)
    sealed, _ = spoofed(training, Behaviour(), 1, None)  # an honest one
    audit = ProofOfLearning(random=DRAWN, top=1)
    assert judged(sealed, training, audit, generator(0)).accepted
    _unsigned(training, audit, sealed, 100 * challenges, seed)
    _signed(training, audit, sealed, 40 * challenges, seed)
    _one_false_checkpoint(training, audit, sealed, 4 * challenges, seed)
    before, heavy = peak(), b"FEDSIMPL" + b"[" * 40_000_000
    verdict = judged(heavy, training, audit, generator(0))
    print(f"a file of 40 MB that is no proof: {verdict.check}, {peak() - before:.0f} MB more", flush=True)


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Some bits the other way, and now and then an end cut off."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed[: chance.randrange(len(changed))] if chance.random() < 0.1 else changed)


def _unsigned(
    training: CentralTraining, audit: ProofOfLearning, sealed: bytes, total: int, seed: int
) -> None:
    chance, checks, before = random.Random(seed), Counter[str](), peak()
    for number in range(total):
        verdict = judged(mutated(sealed, chance), training, audit, generator(seed, number))
        checks["accepted" if verdict.accepted else verdict.check] += 1
    print(f"\n{total} mutations by a stranger, of {len(sealed) / 2**20:.1f} MB: {dict(checks)}", flush=True)
    print(f"peak memory beyond the first proof's: {peak() - before:.0f} MB", flush=True)


def _signed(training: CentralTraining, audit: ProofOfLearning, sealed: bytes, total: int, seed: int) -> None:
    signer, reader = prover_keys(training.keys, training.seed)
    payload = unseal(sealed, *verifier_keys(training.keys, training.seed)).payload
    true, chance, before = from_bytes(payload), random.Random(seed + 1), peak()
    checks, why = Counter[str](), Counter[str]()
    for number in range(total):
        content = mutated(payload, chance)
        verdict = judged(seal(content, signer, reader), training, audit, generator(seed, number))
        checks["accepted" if verdict.accepted else verdict.check] += 1
        if verdict.accepted:
            how = replace(audit.how, epoch=training.epoch)
            lie = from_bytes(content)
            drawn = set(chosen_places(lie.trace, how, generator(seed, number)))
            why[explained(true, lie, drawn)] += 1
    print(f"\n{total} mutations signed again by the prover: {dict(checks)}")
    print(
        f"those accepted: {dict(why)}; peak memory beyond the first proof's: {peak() - before:.0f} MB",
        flush=True,
    )


def explained(true: Proof, lie: Proof, drawn: set[int]) -> str:
    """Say why a mutation was accepted."""
    pairs = list(zip(true.trace.checkpoints, lie.trace.checkpoints, strict=True))
    other = {n for n, (a, b) in enumerate(pairs) if any(not a[name].equal(b[name]) for name in a)}
    digests = {s for s in range(STEPS) if true.trace.digests[s] != lie.trace.digests[s]}
    if {n for n in other if n in drawn or n - 1 in drawn} or digests & drawn:
        named = (true.machine, true.threads, true.libraries) != (lie.machine, lie.threads, lie.libraries)
        return "below delta, on a machine of another name" if named else "UNEXPLAINED"
    if other or digests:
        return "in intervals that were not drawn"
    words = all(getattr(true, name) == getattr(lie, name) for name in WORDS)
    return "UNEXPLAINED" if words else "in words that no step follows from"


def _one_false_checkpoint(
    training: CentralTraining, audit: ProofOfLearning, sealed: bytes, total: int, seed: int
) -> None:
    """How often one false checkpoint passes: by theory, if neither interval beside it is drawn."""
    signer, reader = prover_keys(training.keys, training.seed)
    proof = from_bytes(unseal(sealed, *verifier_keys(training.keys, training.seed)).payload)
    passed, chance = 0, random.Random(seed + 2)
    for number in range(total):
        place = chance.randrange(1, STEPS)
        changed = [dict(weights) for weights in proof.trace.checkpoints]
        changed[place] = {name: tensor + 1e-6 for name, tensor in changed[place].items()}
        lie = to_bytes(replace(proof, trace=replace(proof.trace, checkpoints=tuple(changed))))
        passed += judged(seal(lie, signer, reader), training, audit, generator(seed, "lie", number)).accepted
    pairs = [(a, a + 1) for a in range(STEPS - 1)]
    left = STEPS - 1 - DRAWN  # not drawn, of those that are not the largest
    largest = max(range(STEPS), key=lambda p: _length(proof, p))
    both = left * (left - 1) / ((STEPS - 1) * (STEPS - 2))
    theory = sum(both * (largest not in pair) for pair in pairs) / len(pairs)
    print(
        f"one false checkpoint of {STEPS + 1}: {passed} of {total} accepted, by theory {theory * total:.0f}"
    )


def _length(proof: Proof, place: int) -> float:
    before, after = proof.trace.checkpoints[place : place + 2]
    return sum(float((after[name] - before[name]).square().sum()) for name in before)


def peak() -> float:
    """The most memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
