"""Does the verifier of proofs hold? Spoofs accepted, honest proofs wronged, mutations, edits of a ledger.

python benchmarks/proof_bars.py spoofs central honest mutations ledger [--challenges 100] [--only NAME ...]
(all: about an hour on one core). LeNet-5 on MNIST. Bars: each spoof accepted in at most 5 % of 100 challenges
at the default setting; 0 of 200 honest proofs rejected; no mutation crashes, at most file size + 200 MB of
memory, those accepted lie in intervals that were not drawn; 1,000 of 1,000 edits found. Seeds from 1000 up
were not used for any choice.
"""

import argparse
import random
import resource
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch
from ledger_edits import ledger

from fedsim.config import build_central
from fedsim.config.compose import compose
from fedsim.config.parts import part
from fedsim.core.interfaces import Behaviour, Submission
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, LocalWork, sgd_step, weights_of
from fedsim.core.types import Verdict, Weights
from fedsim.data.batches import natural_places
from fedsim.data.mnist_small import mnist_small
from fedsim.defenses.integrity.proof.proof import proof_of, to_bytes
from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
from fedsim.defenses.integrity.proof.reproduction import other_threads, plain_kernels
from fedsim.defenses.integrity.proof.seal import seal
from fedsim.integrity.keys import prover_keys
from fedsim.integrity.spoof import spoofed
from fedsim.integrity.training import CentralTraining, train_centrally
from fedsim.integrity.verify import judged
from fedsim.models.lenet5 import lenet5

PAPER = {"random": 1, "detection": 0.0, "widen": 0.0, "strict": False}
SPOOFS = (
    *("free_rider", "infinitesimal", "concatenation", "blindfold", "wrong_data", "inverse_gradient"),
    *("directed_retraining", "forger", "rank_matched", "pruned", "hidden_jump", "idle", "one_batch"),
    *("distillation", "adversarial_data"),
    *("planned_data", "creep"),  # these are accepted: the first did train, the second goes nowhere
)
ONLY: list[str] = []  # of the spoofs; none: all
SHARE, SIZE = 400, 32  # examples of a client, and of a step
DATA = mnist_small()


def global_model(seed: int, steps: int = 300) -> Weights:
    """Weights of a LeNet-5 after some training: what a server of a federation sends."""
    torch.manual_seed(seed)
    model = lenet5(DATA.task).eval()
    for step in range(steps):
        chosen = natural_places(len(DATA.train.labels), 64, False, seed, 0, step)
        sgd_step(model, Batch(images=DATA.train.batch(chosen), labels=DATA.train.labels[chosen]), 0.1)
    return weights_of(model)


def federated(
    behaviour: Behaviour,
    audit: ProofOfLearning,
    sent: Weights,
    seed: int,
    *,
    steps: int = 10,
    rate: float = 0.1,
    prover: Callable = nullcontext,
    hides_machine: bool = False,
) -> Verdict:
    """Let a client work for one round, and judge its proof."""
    model = lenet5(DATA.task).eval()
    owned = torch.randperm(len(DATA.train.labels), generator=generator(seed, "share"))[:SHARE]

    def batch(indices: torch.Tensor) -> Batch:
        return Batch(images=DATA.train.batch(indices), labels=DATA.train.labels[indices])

    asked = LocalWork(
        round=1,
        client=seed,
        model=model,
        sent=sent,
        steps=steps,
        learning_rate=rate,
        every=audit.every,
        indices=lambda step: owned[natural_places(SHARE, SIZE, False, seed, seed, step)],
        batch=batch,
        task=DATA.task,
        owned=owned,
        generator=generator(seed, "cheat"),
    )
    with prover():
        claim = behaviour.train(asked)
        tree = audit.commit(behaviour.data(batch(owned), DATA.task))
        sealed = audit.prove(claim, seed=seed, round=1, client=seed)
    if hides_machine:  # as from a machine that the verifier cannot imitate
        from fedsim.defenses.integrity.proof.seal import reading_key, signing_key

        proof = replace(proof_of(claim.trace, subject="", round=1, client=seed), machine="unknown", threads=1)
        sealed = seal(to_bytes(proof), signing_key(seed, seed), reading_key(seed).public_key())

    def reveal(steps: list[int]) -> list[Batch]:
        shown = [claim.batches[step] for step in steps]
        if tree is None:
            return shown
        return [tree.show(b, claim.trace.indices[s]) for s, b in zip(steps, shown, strict=True)]

    order = [tuple(natural_places(SHARE, SIZE, False, seed, seed, step).tolist()) for step in range(steps)]
    return audit.examine(
        Submission(
            round=1,
            client=seed,
            proof=sealed,
            model=model,
            sent=sent,
            received=claim.update,
            num_examples=steps * SIZE,
            task=DATA.task,
            batch_size=SIZE,
            steps=steps,
            learning_rate=rate,
            reveal=reveal,
            seed=seed,
            commitment=tree and tree.commitment,
            order=order,
        )
    )


def spoofs(seed: int, challenges: int) -> None:
    """Clients of a federation that cheat, against the paper's verifier and the default one."""
    few = max(1, challenges // 5)
    print(f"\nclients, 10 local steps, rate .1, trained model: accepted of {few} and of {challenges}")
    print(f"{'spoof':>20} {'paper, Q=R=1':>13} {'default':>8}  checks")
    models = [global_model(seed + number) for number in range(5)]
    for name in ONLY or SPOOFS:
        counts, checks = [], Counter[str]()
        for settings, number in ((PAPER, few), ({}, challenges)):
            verdicts = [
                federated(part("client", name), ProofOfLearning(**settings), models[n % 5], seed + n)
                for n in range(number)
            ]
            counts.append(sum(verdict.accepted for verdict in verdicts))
            checks = Counter(verdict.check for verdict in verdicts if not verdict.accepted)
        print(f"{name:>20} {counts[0]:>13} {counts[1]:>8}  {dict(checks)}", flush=True)


def central_training(seed: int, steps: int, rate: float = 0.1) -> CentralTraining:
    settings = [f"proof.steps={steps}", "proof.batch_size=64", f"proof.learning_rate={rate}", f"seed={seed}"]
    config = compose(["model=lenet5", "audit=proof_of_learning", "name=benchmark", *settings])
    return build_central.central_training(config)[1]


def central(seed: int, challenges: int) -> None:
    """Proofs of stolen weights outside of a federation, over Q, R and k; a proof is challenged many times."""
    settings = {
        "paper, Q=R=1": PAPER,
        "paper, R=5": PAPER | {"random": 5},
        "detection .5": {"detection": 0.5},
        "default": {},
    }
    print(f"\nstolen weights, 60 steps, rate .1: accepted of {challenges} challenges (5 proofs)")
    print(f"{'spoof':>20} {'k':>3} " + " ".join(f"{name:>13}" for name in settings))
    names = [n for n in ONLY or SPOOFS if n not in ("forger", "inverse_gradient")]  # minutes each
    for every in (1, 5):
        made = dict[str, list[tuple[CentralTraining, bytes]]]()
        for number in range(5):
            training, stolen = central_training(seed + number, 60), global_model(seed + 50 + number)
            for name in names:
                sealed, _ = spoofed(training, part("client", name), every, stolen)
                made.setdefault(name, []).append((training, sealed))
        for name, proofs in made.items():
            row = list[str]()
            for how in settings.values():
                audit = ProofOfLearning(every=every, **how)
                passed = sum(
                    judged(sealed, training, audit, generator(seed, "challenge", c)).accepted
                    for c in range(challenges // len(proofs))
                    for training, sealed in proofs
                )
                row.append(f"{passed:>13}")
            print(f"{name:>20} {every:>3} " + " ".join(row), flush=True)


def honest(seed: int, challenges: int) -> None:
    """Honest proofs of trained models, by other threads and kernels, imitated by the verifier or not."""
    print("\nhonest proofs rejected (rates .01, .05, .1; k = 1, 5, 10, 20; 20 steps)")
    print(f"{'prover':>28} {'imitated':>9} {'rejected':>9} {'largest distance':>17} {'widest limit':>13}")
    models = [global_model(seed + number, steps) for number, steps in enumerate((100, 300, 1000))]
    provers = {"2 threads": lambda: other_threads(2), "plain kernels": plain_kernels}
    cases = [(rate, every) for rate in (0.01, 0.05, 0.1) for every in (1, 5, 10, 20)]
    for name, prover in provers.items():
        for hides in (False, True):
            verdicts = [
                federated(
                    Behaviour(),
                    ProofOfLearning(every=cases[n % 12][1]),
                    models[n % 3],
                    seed + n,
                    steps=20,
                    rate=cases[n % 12][0],
                    prover=prover,
                    hides_machine=hides,
                )
                for n in range(2 * challenges)
            ]
            wronged = [verdict for verdict in verdicts if not verdict.accepted]
            far = max(verdict.distance or 0.0 for verdict in verdicts)
            wide = max(verdict.limit or 0.0 for verdict in verdicts)
            share = f"{len(wronged)} of {len(verdicts)}"
            print(f"{name:>28} {not hides!s:>9} {share:>9} {far:>17.2g} {wide:>13.2g}", flush=True)
            for verdict in wronged[:3]:
                print(f"    {verdict.check}: {verdict.reason}")


def mutations(seed: int, challenges: int) -> None:
    """Proofs changed by a stranger, and by their own prover, who signs them again."""
    training = central_training(seed, 40)
    signer, reader = prover_keys(training.keys, training.seed)
    trace = train_centrally(training, 1)
    audit = ProofOfLearning(strict=False, random=20, top=1)
    payload = to_bytes(proof_of(trace, subject="forty steps", initial="random"))
    sealed, chance = seal(payload, signer, reader), random.Random(seed)
    assert judged(sealed, training, audit, generator(0)).accepted
    before = peak()
    for what, total in (("unsigned", 100 * challenges), ("signed again by the prover", 40 * challenges)):
        checks = Counter[str]()
        for number in range(total):
            content = bytearray(sealed if what == "unsigned" else payload)
            for _ in range(chance.choice((1, 1, 1, 2, 8))):
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            if chance.random() < 0.1:
                content = content[: chance.randrange(len(content))]
            sent = bytes(content) if what == "unsigned" else seal(bytes(content), signer, reader)
            verdict = judged(sent, training, audit, generator(seed, number))
            checks["accepted" if verdict.accepted else verdict.check] += 1
        print(f"\n{total} mutations {what}, of {len(sealed) / 2**20:.1f} MB: {dict(checks)}")
    print(f"memory above the first proof's: {peak() - before:.0f} MB")
    heavy = b"FEDSIMPL" + b"[" * 40_000_000
    before = peak()
    verdict = judged(heavy, training, audit, generator(0))
    print(f"a file of 40 MB that is no proof: {verdict.check}, {peak() - before:.0f} MB more")
    unsampled(training, trace, audit, seed, challenges)


def unsampled(training: CentralTraining, trace, audit: ProofOfLearning, seed: int, challenges: int) -> None:
    """How often a small lie in two neighbouring intervals passes: by sampling theory, if neither is drawn."""
    signer, reader = prover_keys(training.keys, training.seed)
    passed, total, chance = 0, 4 * challenges, random.Random(seed)
    for number in range(total):
        place = chance.randrange(1, 40)
        changed = [dict(weights) for weights in trace.checkpoints]
        changed[place] = {name: tensor + 1e-4 for name, tensor in changed[place].items()}
        lie = proof_of(replace(trace, checkpoints=tuple(changed)), subject="a lie", initial="random")
        sealed = seal(to_bytes(lie), signer, reader)
        passed += judged(sealed, training, audit, generator(seed, "lie", number)).accepted
    theory = (39 - 20) * (38 - 20) / (39 * 38)
    print(f"one false checkpoint of 41: {passed} of {total} accepted, by theory {theory * total:.0f}")


def peak() -> float:
    """The most memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--challenges", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("parts", nargs="*", default=["spoofs", "central", "honest", "mutations", "ledger"])
    parser.add_argument("--only", nargs="*", default=[], help="of the spoofs")
    asked = parser.parse_args()
    ONLY += asked.only
    for name in asked.parts:
        {"spoofs": spoofs, "central": central, "honest": honest, "mutations": mutations, "ledger": ledger}[
            name
        ](asked.seed, asked.challenges)
