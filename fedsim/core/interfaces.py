"""What attacks, defences, clients, audits and metrics have to offer. The rest finds them by their yaml."""

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Generator, Tensor, nn

from fedsim.core.errors import FedsimError
from fedsim.core.federation import Federation
from fedsim.core.tasks import task_of
from fedsim.core.training import Batch, Claim, LocalWork, honest, load_weights
from fedsim.core.types import (
    Kind,
    KnownDefense,
    Observation,
    Reconstruction,
    Score,
    Task,
    Truth,
    Verdict,
    Weights,
    form_problem,
)
from fedsim.data.images import Images


class Attack:
    """A malicious server: it may choose what it broadcasts, and reads private data out of replies."""

    def craft(self, model: nn.Module, task: Task, round: int, weights: Weights) -> Weights:
        """Return what to broadcast in place of the honest weights (honest but curious by default).

        Training goes on from what was sent: an attack that crafts every round gives up on accuracy.
        """
        return weights

    def crafts(self) -> bool:
        """Say whether this attack broadcasts weights of its own."""
        return type(self).craft is not Attack.craft

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Reconstruct one private batch from what was seen of it; `model` holds the last weights sent."""
        raise NotImplementedError

    def __call__(
        self,
        model: nn.Module,
        *observations: Observation,
        input_shape: tuple[int, int, int],
        mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
    ) -> Reconstruction:
        """Run on a model of one's own, which stays as it is: the attack gets a copy with what was sent.

        input_shape: of an image, which no gradient tells; the number of classes is read off the model.
        mean, std: as the model's first layer normalises, if it does.
        """
        if not observations:
            raise FedsimError("expected an observation, got none. Remedy: attack(model, observation, ...).")
        own, sent = copy.deepcopy(model).eval(), observations[-1].sent
        if problem := form_problem(sent, dict(own.named_parameters())):
            raise FedsimError(f"the model does not fit what was sent: {problem}")
        load_weights(own, sent)
        return self.run(own, task_of(own, input_shape, mean=mean, std=std), observations)


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalStep:
    """What a client has in hand when it has computed a gradient."""

    model: nn.Module  # with the weights of this step
    images: Tensor
    labels: Tensor  # (N,) classes, or (N, C) shares of classes


class Defense:
    """A cautious client: overrides the hook that it changes. Order of a list is order of action."""

    bits: float | None = None  # of each number after this defence; None: as many as before it
    rescales: bool = False  # noise that was added before has another deviation afterwards
    sparse: bool = False  # zeros after this defence are worth leaving out on the wire
    keeps_rest: bool = False  # error feedback: what on_reply takes away is added to the client's next reply
    sums_replies: bool = False  # the server gets only the sum over a round's clients

    def rules(self, federation: Federation) -> Federation:
        """Return the rules of the federation to play by."""
        return federation

    def on_batch(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return the batch to train on in place of the private one."""
        return images, labels

    def on_gradient(self, gradient: Weights, step: LocalStep, generator: Generator) -> Weights:
        """Return the gradient to use in place of a local step's batch-mean gradient."""
        return gradient

    def epsilon(self, *, sample_rate: float, steps: int) -> float | None:
        """Return the differential privacy of so many local steps, or None where none is promised."""
        return None

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Return what leaves the client in place of its gradient or update."""
        return reply

    def known(self, observation: Observation) -> KnownDefense:
        """Return what its settings tell an attacker who sees this."""
        return KnownDefense()


class Metric:
    """A figure of merit of a reconstruction against the truth."""

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score a guess, or return None when it does not claim what this metric measures."""
        raise NotImplementedError


class Behaviour:
    """What a client does when it is asked to train: the work, unless it cheats."""

    def train(self, work: LocalWork) -> Claim:
        """Return an update and what is claimed of how it came about."""
        return honest(work)

    def send(self, proof: bytes, previous: bytes) -> bytes:
        """Return the sealed proof to send; previous: the client's last one, empty in its first round."""
        return proof


@dataclass(frozen=True, kw_only=True, eq=False)
class Challenge:
    """A step of a trace, to be claimed for other data, and what there is to make that of."""

    model: nn.Module  # with the weights before the step
    batch: Batch  # that the step is taken on
    unwanted: Tensor  # places in the batch of the examples that must not appear; none: any other batch
    task: Task
    owned: Tensor  # indices of other examples at hand, none of them in the batch
    examples: Callable[[Tensor], Batch]  # the examples at indices
    generator: Generator


class Forgery:
    """A way to another batch with the same update, and the domain where its batches lie."""

    pixels: str = "real"  # or uint8 (multiples of 1/255 in [0, 1]), box (in [0, 1])
    classes: bool = True  # labels are classes

    def compose(self, challenge: Challenge) -> Batch:
        """Return the batch to train on: the one at hand, unless the forgery must plan ahead."""
        return challenge.batch

    def forge(self, challenge: Challenge) -> Batch:
        """Return the batch to claim."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, eq=False)
class Submission:
    """What a server holds in hand when it audits a reply, and how it asks for more."""

    round: int
    client: int
    proof: bytes
    model: nn.Module
    sent: Weights
    received: Weights  # the update
    num_examples: int | None  # that the client disclosed
    task: Task
    steps: int
    batch_size: int
    learning_rate: float
    reveal: Callable[[Sequence[int]], Sequence[Batch]]  # ask the client for the batches of these steps
    seed: int  # the server's own
    folder: Path  # where proofs may be kept


@dataclass(frozen=True, kw_only=True, eq=False)
class CentralTraining:
    """A training outside of a federation, to be proved, verified or studied."""

    fresh: Callable[[int], nn.Module]  # models of random initialisations
    train: Images
    task: Task
    steps: int
    batch_size: int
    learning_rate: float
    precision: str  # of the checkpoints in a proof
    seed: int
    keys: Path | None  # a folder of key files; None: keys that follow from the seed
    threads: int
    folder: Path  # for what is written
    study: tuple[str, ...]  # what a calibration looks at
    intervals: tuple[int, ...]  # between checkpoints, to calibrate for
    batch_sizes: tuple[int, ...]  # to compare


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedStep:
    """A step of a trace, as a verifier knows it who trained himself."""

    model: nn.Module  # its weights are overwritten
    before: Weights
    after: Weights
    batch: Batch
    unwanted: Tensor  # places in the batch of the examples that must not appear
    task: Task
    learning_rate: float
    precision: str
    threads: int


@dataclass(frozen=True, kw_only=True)
class StepVerdict:
    """What a verifier finds of the claim that a step was taken on another batch."""

    accepted: bool
    check: str = ""  # the one that failed: domain, distinct, gone or step
    reason: str = ""
    domain: str  # the strictest that the claimed batch lies in
    gone: int  # of the unwanted examples, those that do not appear
    error: float  # of the recomputed weights, l2
    benign: float  # the largest of honest recomputations
    delta: float


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One figure of a calibration."""

    study: str
    case: str
    figure: str
    value: float


class Audit:
    """A server that has clients prove their work. One object serves both sides of a simulation."""

    wanted: bool = True  # False: there is none
    every: int = 1  # steps between the checkpoints of a trace
    rejected_weight: float = 0.0  # of a rejected reply in the mean: 0 leaves it out

    def prove(self, claim: Claim, *, seed: int, round: int, client: int) -> bytes:
        """Return the client's proof of what it claims."""
        raise NotImplementedError

    def examine(self, submission: Submission) -> Verdict:
        """Judge a reply by its proof. Never raises: whatever is wrong with it is the verdict."""
        raise NotImplementedError

    def make_keys(self, folder: Path) -> None:
        """Write a prover's and a verifier's key pairs."""
        raise NotImplementedError

    def check_records(self, folder: Path) -> tuple[int, str | None]:
        """Return how many proofs a run was sent, and what was changed of them since."""
        raise NotImplementedError

    def prove_training(self, training: CentralTraining) -> Path:
        """Train, and return the file that proves it."""
        raise NotImplementedError

    def verify_file(self, path: Path, training: CentralTraining) -> Verdict:
        """Judge such a file."""
        raise NotImplementedError

    def step_indices(self, training: CentralTraining, step: int) -> Tensor:
        """Return which examples a step of a training is taken on."""
        raise NotImplementedError

    def weights_before(self, training: CentralTraining, steps: Collection[int]) -> dict[int, Weights]:
        """Train as far as is needed, and return the weights before these steps."""
        raise NotImplementedError

    def judge_step(self, step: RecordedStep, claimed: Batch, delta: float | None) -> StepVerdict:
        """Judge the claim that a step was taken on another batch; delta None: calibrated on this step."""
        raise NotImplementedError

    def suspicions(self, batch: Batch, reference: Batch) -> dict[str, float]:
        """Measure how unlike other data a batch is, by several statistics; more is stranger."""
        raise NotImplementedError

    def calibrate(self, training: CentralTraining) -> Sequence[Finding]:
        """Measure what tells honest recomputation from a lie, on this machine."""
        raise NotImplementedError
