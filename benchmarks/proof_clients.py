"""Clients of a federation that cheat, and honest ones on other machines: who is rejected?"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch

from fedsim.config import build_central
from fedsim.config.compose import compose
from fedsim.config.parts import part
from fedsim.core.interfaces import Behaviour, Submission
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, Claim, LocalWork, sgd_step, weights_of
from fedsim.core.training import honest as honestly
from fedsim.core.types import Verdict, Weights
from fedsim.data.batches import natural_places
from fedsim.data.mnist_small import mnist_small
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
from fedsim.defenses.integrity.proof.reproduction import other_threads, plain_kernels
from fedsim.integrity.training import CentralTraining
from fedsim.models.lenet5 import lenet5

PAPER = {"random": 1, "detection": 0.0, "widen": 0.0, "strict": False}
SPOOFS = (
    *("free_rider", "infinitesimal", "concatenation", "blindfold", "wrong_data", "inverse_gradient"),
    *("directed_retraining", "forger", "rank_matched", "pruned", "hidden_jump", "idle", "one_batch"),
    *("distillation", "adversarial_data"),
    *("creep", "bent_moments"),
    "planned_data",  # which is accepted: it did train, on data that is worth nothing
)
ONLY: list[str] = []  # of the spoofs; none: all
SHARE, SIZE = 200, 16  # examples of a client, and of a step
DATA = mnist_small()


def global_models(seed: int, steps: Sequence[int] = (100, 150, 200, 250, 300)) -> list[Weights]:
    """Weights of a LeNet-5 after so many steps of one training: what a server of a federation sends."""
    torch.manual_seed(seed)
    model, found = lenet5(DATA.task).eval(), list[Weights]()
    for step in range(max(steps)):
        chosen = natural_places(len(DATA.train.labels), 64, False, seed, 0, step)
        sgd_step(model, Batch(images=DATA.train.batch(chosen), labels=DATA.train.labels[chosen]), 0.1)
        if step + 1 in steps:
            found.append(weights_of(model))
    return found


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
        if hides_machine:  # as from a machine that the verifier cannot imitate
            claim = replace(claim, machine="unknown")
        tree = audit.commit(behaviour.data(batch(owned), DATA.task))
        sealed = audit.prove(claim, seed=seed, round=1, client=seed)

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
    few = max(1, challenges // 10)
    print(f"\nclients, 10 local steps, rate .1, trained model: accepted of {few} and of {challenges}")
    print(f"{'spoof':>20} {'paper, Q=R=1':>13} {'default':>8}  checks")
    models = global_models(seed)
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
    settings = [f"proof.steps={steps}", "proof.batch_size=32", f"proof.learning_rate={rate}", f"seed={seed}"]
    config = compose(["model=lenet5", "audit=proof_of_learning", "name=benchmark", *settings])
    return build_central.central_training(config)[1]


def honest(seed: int, challenges: int) -> None:
    """Honest proofs of trained models, by other threads and kernels, imitated by the verifier or not."""
    print("\nhonest proofs rejected (rates .01, .05, .1; k = 1, 5, 10, 20; 20 steps)")
    print(f"{'prover':>28} {'imitated':>9} {'rejected':>9} {'largest distance':>17} {'widest limit':>13}")
    models = global_models(seed, (100, 300, 600))
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
                for n in range(challenges // 2)
            ]
            wronged = [verdict for verdict in verdicts if not verdict.accepted]
            far = max(verdict.distance or 0.0 for verdict in verdicts)
            wide = max(verdict.limit or 0.0 for verdict in verdicts)
            share = f"{len(wronged)} of {len(verdicts)}"
            print(f"{name:>28} {not hides!s:>9} {share:>9} {far:>17.2g} {wide:>13.2g}", flush=True)
            for verdict in wronged[:3]:
                print(f"    {verdict.check}: {verdict.reason}")


CREEPS: dict[str, tuple[dict, dict]] = {  # settings of the attack, and of the verifier
    "straight": ({}, {}),
    "straight, machine hidden": ({"hides_machine": True}, {}),
    "wavers": ({"wavers": True}, {}),
    "wavers, machine hidden": ({"wavers": True, "hides_machine": True}, {}),
    "the same, machines=same": ({"wavers": True, "hides_machine": True}, {"machines": "same"}),
}


def creep(seed: int, challenges: int) -> None:
    """Bends below delta: who is accepted, and how far they got on the way to what they want."""
    print(f"\ncreep, 10 local steps, rate .1, trained model: accepted of {challenges}, and what it gains")
    heads = f"{'bent by (l2)':>13} {'length of round':>16} {'of the way':>11}"
    print(f"{'creep':>26} {'accepted':>9} {heads}  checks")
    models = global_models(seed)
    for name, (settings, verifier) in CREEPS.items():
        verdicts, bent, lengths = list[Verdict](), list[float](), list[float]()
        for number in range(challenges):
            behaviour = _Watched(part("client", "creep", **settings))
            audit, sent = ProofOfLearning(**verifier), models[number % 5]
            verdicts.append(federated(behaviour, audit, sent, seed + number))
            bent.append(behaviour.bent)
            lengths.append(behaviour.length)
        accepted = sum(verdict.accepted for verdict in verdicts)
        checks = dict(Counter(verdict.check for verdict in verdicts if not verdict.accepted))
        share = max(one / far for one, far in zip(bent, lengths, strict=True))
        far = f"{min(lengths):.2g} to {max(lengths):.2g}"
        print(f"{name:>26} {accepted:>9} {max(bent):>13.2g} {far:>16} {share:>11.1g}  {checks}", flush=True)


class _Watched(Behaviour):
    """A cheat beside an honest client with the same work: how far apart do they end?"""

    def __init__(self, cheat: Behaviour) -> None:
        self.cheat, self.bent, self.length = cheat, 0.0, 0.0

    def train(self, work: LocalWork) -> Claim:
        """Let both work."""
        true, claim = honestly(work), self.cheat.train(work)
        self.bent = distance("l2", true.update, claim.update)
        self.length = float(torch.cat([tensor.flatten() for tensor in true.update.values()]).norm())
        return claim
