"""Do an audited run's verdicts hold? Who has its folder, and the data, judges the kept proofs again.

Replies and broadcast weights are not kept, so a proof must begin where all that were accepted in its round
begin (in the first: at the model of the seed), and ends wherever it does. Data that a client showed is made
again from the config, as far as it is what it committed to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Audit, Submission
from fedsim.core.training import Batch, Commitment, weights_of
from fedsim.core.types import Verdict, Weights
from fedsim.defenses.integrity.proof.expected import Rejected
from fedsim.defenses.integrity.proof.proof import Proof
from fedsim.defenses.integrity.proof.seal import reading_key, signing_key
from fedsim.defenses.integrity.proof.verify import opened
from fedsim.flower.auditing import order_of
from fedsim.flower.local_round import committed
from fedsim.flower.setups import ClientSetup
from fedsim.lab.experiment import Experiment
from fedsim.models.batch_norm import set_batch_norm
from fedsim.storage.ledger import commitments, proof_file
from fedsim.storage.runfolder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Twice:
    """A verdict as it was recorded, and what the same proof gets now."""

    recorded: Verdict
    again: Verdict

    @property
    def differs(self) -> bool:
        """Whether they are not of one mind."""
        return self.recorded.accepted != self.again.accepted


def judged_again(experiment: Experiment, folder: RunFolder) -> Iterator[Twice]:
    """Yield every verdict of a run beside what its proof gets now; in the order of the table."""
    audit, rules = experiment.audit, experiment.federation
    if audit is None or not audit.commits:
        raise FedsimError(f"{folder.path}: expected an audit to which clients commit their data, got none")
    if rules.labels != "natural":
        raise FedsimError(f"federation.labels={rules.labels}: expected natural: no other order can be told")
    torch.set_num_threads(experiment.threads)
    clients, told = experiment.prepare_clients(folder.path)(), commitments(folder.storage)
    begins, verdicts = _beginnings(experiment, folder), folder.verdicts()
    for verdict in verdicts:
        commitment = told.get(verdict.client)
        if commitment is None:
            raise FedsimError(f"client {verdict.client} has no commitment in the ledger of {folder.path}")
        yield Twice(
            recorded=verdict,
            again=_judged(experiment, audit, clients, folder, verdict, commitment, begins[verdict.round]),
        )


def _judged(
    experiment: Experiment,
    audit: Audit,
    clients: ClientSetup,
    folder: RunFolder,
    seen: Verdict,
    commitment: Commitment,
    began: Weights,
) -> Verdict:
    rules, client = experiment.federation, seen.client
    sealed = (folder.path / proof_file(seen.round, client)).read_bytes()
    order = order_of(rules, experiment.seed, seen, commitment.examples)
    tree, share = committed(clients, client), clients.shares[client]
    own = Batch(images=clients.train.batch(share), labels=clients.train.labels[share])
    data = clients.behaviour(client).data(own, experiment.task)

    def reveal(steps: Sequence[int]) -> list[Batch]:
        assert order is not None
        places = [torch.tensor(order[step]) for step in steps]
        if tree.commitment != commitment or any(int(p.max()) >= len(data.labels) for p in places):
            raise FedsimError("the data that the config leads to is not what was committed to")
        batches = [Batch(images=data.images[p], labels=data.labels[p]) for p in places]
        return [tree.show(batch, order[step]) for step, batch in zip(steps, batches, strict=True)]

    set_batch_norm(experiment.model, rules.batch_norm)
    proof = _opened(sealed, experiment.seed, client)
    return audit.examine(
        Submission(
            round=seen.round,
            client=client,
            proof=sealed,
            model=experiment.model,
            sent=began,
            received=began if proof is None else _reply(proof),
            num_examples=None,
            task=experiment.task,
            batch_size=rules.batch_size,
            steps=rules.local_steps,
            learning_rate=rules.local_lr,
            reveal=reveal,
            seed=experiment.seed,
            commitment=commitment,
            kind=rules.reply_kind,
            order=order,
        )
    )


def _beginnings(experiment: Experiment, folder: RunFolder) -> dict[int, Weights]:
    """Return where each round began: at the model; later, where its first accepted proof does."""
    first = weights_of(experiment.model)
    found = dict[int, Weights]()
    for verdict in sorted(folder.verdicts(), key=lambda verdict: not verdict.accepted):
        if verdict.round not in found:
            sealed = (folder.path / proof_file(verdict.round, verdict.client)).read_bytes()
            proof = _opened(sealed, experiment.seed, verdict.client)
            began = first if proof is None or verdict.round == 1 else proof.trace.checkpoints[0]
            found[verdict.round] = began
    return found


def _opened(sealed: bytes, seed: int, client: int) -> Proof | None:
    try:
        return opened(sealed, signing_key(seed, client).public_key(), reading_key(seed))
    except Rejected:
        return None


def _reply(proof: Proof) -> Weights:
    first, last = proof.trace.checkpoints[0], proof.trace.checkpoints[-1]
    return last if proof.trace.gradient else {name: last[name] - first[name] for name in last}
