"""What attacks, defenses, clients, audits and metrics have to offer. The rest finds them by their yaml."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Generator, Tensor, nn

from fedsim.core.challenges import Challenge
from fedsim.core.errors import FedsimError
from fedsim.core.federation import Federation
from fedsim.core.inputs import Inputs
from fedsim.core.prior import Prior
from fedsim.core.tasks import task_of
from fedsim.core.training import Batch, Claim, Commitment, LocalWork, honest, load_weights
from fedsim.core.types import (
    Kind,
    KnownDefense,
    Observation,
    PublicImages,
    Reconstruction,
    RoundResult,
    Score,
    Task,
    Truth,
    Verdict,
    Weights,
    form_problem,
)


class Attack:
    """A malicious server: it may choose what it broadcasts, and reads private data out of replies."""

    public: PublicImages | None = None  # that it was given: what they tell by themselves is no leak
    prior: str = ""  # what a learnt prior of it was learnt from, in words
    keeps_honest: bool = False  # training goes on from the honest weights: a crafted round teaches nothing

    def craft(self, model: nn.Module, task: Task, round: int, weights: Weights) -> Weights:
        """Return what to broadcast in place of the honest weights (honest but curious by default).

        Training goes on from what was sent; if the attack keeps_honest, that round counts for nothing.
        """
        return weights

    def tailor(self, model: nn.Module, task: Task, round: int, client: int, broadcast: Weights) -> Weights:
        """Return what one client gets in place of the broadcast, by arguments and settings alone."""
        return broadcast

    def crafts_in(self, round: int) -> bool:
        """Say whether this round's weights are this attack's own; only such rounds are attacked then."""
        return self.crafts()

    def crafts(self) -> bool:
        """Say whether this attack broadcasts weights of its own."""
        return type(self).craft is not Attack.craft or type(self).tailor is not Attack.tailor

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that this attack cannot work on, as far as its structure tells."""

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Reconstruct one private batch from what was seen of it; `model` holds the last weights sent."""
        raise NotImplementedError

    def __call__(
        self,
        model: nn.Module,
        *observations: Observation,
        input_shape: tuple[int, ...] = (),
        mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
        inputs: Inputs | None = None,
    ) -> Reconstruction:
        """Run on a model of one's own, which stays as it is: the attack gets a copy with what was sent.

        input_shape: of an image, which no gradient tells; the number of classes is read off the model.
        mean, std: as the model's first layer normalises, if it does. inputs: tokens or rows, if no images.
        """
        if not observations:
            raise FedsimError("expected an observation, got none. Remedy: attack(model, observation, ...).")
        own, sent = copy.deepcopy(model).eval(), observations[-1].sent
        if problem := form_problem(sent, dict(own.named_parameters())):
            raise FedsimError(f"the model does not fit what was sent: {problem}")
        load_weights(own, sent)
        return self.run(own, task_of(own, input_shape, mean=mean, std=std, inputs=inputs), observations)


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalStep:
    """What a client has in hand when it has computed a gradient."""

    model: nn.Module  # with the weights of this step
    images: Tensor
    labels: Tensor  # (N,) classes, or (N, C) shares of classes
    expected: int | None = None  # examples that such a batch has on average; None: as many as this one


class Defense:
    """A cautious client: overrides the hook that it changes. Order of a list is order of action."""

    bits: float | None = None  # of each number after this defense; None: as many as before it
    rescales: bool = False  # noise that was added before has another deviation afterwards
    sparse: bool = False  # zeros after this defense are worth leaving out on the wire
    keeps_rest: bool = False  # error feedback: what on_reply takes away is added to the client's next reply
    repeatable: bool = False  # acts on replies alone, and without chance: an audit can do it again
    sums_replies: bool = False  # the server gets only the sum over a round's clients
    masks: bool = False  # by masks on the replies, which cancel in it; otherwise the sum is computed as it is
    neighbours: int | None = None  # that a client shares masks with; None: as many as SecAgg+ asks for
    inspects: bool = False  # it changes nothing, and refuses to answer what looks crafted
    delta: float = 1e-5  # that its epsilon is for
    longest: float | None = None  # l2 norm that no reply exceeds after it, whatever the data; None: any
    gaussian: float = 0.0  # deviation of the Gaussian noise that it adds to every entry, whatever the data
    looks_back: bool = False  # on_sent compares with what this client was sent before

    def rules(self, federation: Federation) -> Federation:
        """Return the rules of the federation to play by."""
        return federation

    def on_sent(self, sent: Weights, before: Weights | None, model: nn.Module) -> None:
        """Look at what the server sent, and refuse it by the error Refused; before: the last time."""

    def on_batch(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return the batch to train on in place of the private one."""
        return images, labels

    def on_gradient(self, gradient: Weights, step: LocalStep, generator: Generator) -> Weights:
        """Return the gradient to use in place of a local step's batch-mean gradient."""
        return gradient

    def epsilon(self, *, sample_rate: float, steps: int, replaced: bool = False) -> float | None:
        """Return the differential privacy of so many local steps, or None where none is promised.

        sample_rate: the chance of an example to be in a step's batch; replaced: data sets are neighbours when
        one example is another, not when one is missing.
        """
        return None

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Return what leaves the client in place of its gradient or update."""
        return reply

    def known(self, observation: Observation) -> KnownDefense:
        """Return what its settings tell an attacker who sees this."""
        return KnownDefense()


class Metric:
    """A figure of merit of a reconstruction against the truth."""

    highest: bool = True  # a larger value is a better reconstruction
    bounded: bool = False  # values lie between 0 and 1
    title: str = ""  # what reports call it; empty: by the name of its scores
    unit: str = ""  # such as dB
    paper: str = ""  # where it comes from

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score a guess, or return None when it does not claim what this metric measures."""
        raise NotImplementedError

    def blind(self, prior: Prior) -> Sequence[Reconstruction]:
        """Return guesses that need no gradient: the one that scores best is the baseline."""
        return prior.guesses()


class Behaviour:
    """What a client does when it is asked to train: the work, unless it cheats."""

    def train(self, work: LocalWork) -> Claim:
        """Return an update and what is claimed of how it came about."""
        return honest(work)

    def data(self, own: Batch, task: Task) -> Batch:
        """Return the data to commit to, before the first round: a client's own, unless it plans ahead."""
        return own

    def send(self, proof: bytes, previous: bytes) -> bytes:
        """Return the sealed proof to send; previous: the client's last one, empty in its first round."""
        return proof


class Forgery:
    """A way to another batch with the same update, and the domain where its batches lie."""

    pixels: str = "real"  # or uint8 (multiples of 1/255 in [0, 1]), box (in [0, 1])
    classes: bool = True  # labels are classes
    tokens: bool = False  # takes texts, too

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
    received: Weights  # the gradient or update, as it left the client
    num_examples: int | None  # that the client disclosed
    task: Task
    steps: int
    batch_size: int
    learning_rate: float
    reveal: Callable[[Sequence[int]], Sequence[Batch]]  # ask the client for the batches of these steps
    seed: int  # the server's own
    commitment: Commitment | None = None  # to the client's data, from before; None: nothing binds it
    order: Sequence[tuple[int, ...]] | None = None  # of each step's examples; None: the client's choice
    kind: Kind = "update"  # of what was received
    defended: Callable[[Weights], Weights] = lambda reply: reply  # what leaves a client in place of a reply


class Committed:
    """Data that a client has committed to: what it tells of it, and how it shows its examples."""

    commitment: Commitment

    def show(self, batch: Batch, places: Sequence[int]) -> Batch:
        """Return a batch with what shows that it is of this data, at these places."""
        raise NotImplementedError


class Audit:
    """A server that has clients prove their work. One object serves both sides of a simulation."""

    every: int = 1  # steps between the checkpoints of a trace
    rejected_weight: float = 0.0  # of a rejected reply in the mean: 0 leaves it out
    keep: bool = True  # proofs as they came in, with their ledger, in the run folder
    commits: bool = False  # whether clients commit to their data before they are told what to do
    exclude_after: int = 0  # rejections after which a client is asked no more; 0: it always is

    def commit(self, data: Batch) -> Committed | None:
        """Return a client's commitment to its data, sent before its first round; None: none is wanted."""
        return None

    def prove(self, claim: Claim, *, seed: int, round: int, client: int) -> bytes:
        """Return the client's proof of what it claims."""
        raise NotImplementedError

    def verifier(self, seed: int) -> tuple[str, Callable[[bytes], bytes]]:
        """Return the verifier's public key in hex, and what signs the head of a run's ledger with its own."""
        raise NotImplementedError

    def examine(self, submission: Submission) -> Verdict:
        """Judge a reply by its proof. Never raises: whatever is wrong with it is the verdict."""
        raise NotImplementedError


class Tracker:
    """Tells another tool of a run. It is called in the process that plays; what it raises costs no run."""

    def begin(self, name: str, settings: Mapping[str, str], folder: Path) -> None:
        """Hear of a run that begins: its name, its settings by dotted names, its folder."""

    def round(self, result: RoundResult) -> None:
        """Hear how well the global model does after a round."""

    def end(self, status: str, scores: Mapping[str, float], files: Mapping[str, Path]) -> None:
        """Hear how it ended: final scores, baselines as `baseline/NAME`, and files such as report.html."""
