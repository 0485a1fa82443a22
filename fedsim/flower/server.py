"""The Flower server: broadcasts, checks and observes every reply, aggregates, tests the global model."""

import copy
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn
from torch.nn import functional

from fedsim.core import progress
from fedsim.core.errors import FedsimError, in_words, shortened
from fedsim.core.federation import Federation
from fedsim.core.interfaces import Attack, Audit, Submission
from fedsim.core.training import Batch, batch_gradient, load_weights
from fedsim.core.types import ALL, Fault, Observation, RoundResult, Task, Verdict, Weights, reply_problem
from fedsim.data.images import Images
from fedsim.flower.nodes import clients_of_nodes, told_number
from fedsim.flower.overflow import Guard
from fedsim.flower.records import arrays_of, decode, encode
from fedsim.flower.wire import dense_bytes
from fedsim.models.batch_norm import set_batch_norm

log = logging.getLogger(__name__)
MOST = 2**40  # examples that anybody may claim
LARGEST = 1e30  # loss or learning rate
PROBED = 8  # test images, to see what a large reply would do


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerSetup:
    """What the server works with, and where its findings go as they come."""

    model: nn.Module
    task: Task
    test: Images
    federation: Federation
    attack: Attack
    audit: Audit | None
    sums_replies: bool  # secure aggregation: only the sum over a round's clients can be observed
    first_scale: float  # the largest weight of the first model
    seed: int
    device: str
    threads: int
    keep_observation: Callable[[Observation], None]
    keep_fault: Callable[[Fault], None]
    keep_round: Callable[[RoundResult], None]
    keep_verdict: Callable[[Verdict], None]
    keep_proof: Callable[[int, int, bytes], None]  # of a round and a client, as it came in
    keep_weights: Callable[[Weights, int], None]
    done: int = 0  # rounds that were played before; the model holds the weights after them


def server_app(setup: ServerSetup) -> ServerApp:
    """Build the ServerApp that plays all rounds."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.set_num_threads(setup.threads)
        started = time.perf_counter()
        initial = {name: p.detach().cpu().clone() for name, p in setup.model.named_parameters()}
        strategy = ObservingStrategy(setup=setup, nodes=clients_of_nodes(grid, setup.federation.clients))
        with progress.bar("rounds", setup.federation.rounds) as advance:

            def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
                if server_round == 0 and setup.done:
                    return None  # it was tested when that round ended
                round = server_round + setup.done
                advance(round)
                weights = decode(arrays)
                result = test_round(setup, round, weights, time.perf_counter() - started)
                setup.keep_weights(weights, round)
                return result

            rules, left = setup.federation, setup.federation.rounds - setup.done
            strategy.start(grid, encode(initial), left, timeout=rules.timeout, evaluate_fn=evaluate)

    return app


@dataclass(eq=False)
class ObservingStrategy(Strategy):
    """FedSGD or FedAvg, with the malicious server's two hooks: tampered broadcast, kept observations."""

    setup: ServerSetup
    nodes: dict[int, int]  # Flower node id -> client number
    _sent: Weights = field(default_factory=dict)
    _asked: Sequence[int] = ()
    _grid: Grid | None = None
    _audited: nn.Module | None = None

    @functools.cached_property
    def _guard(self) -> Guard:
        probe = None if self.setup.attack.crafts() else self._honest_gradient
        return Guard(probe=probe, first=self.setup.first_scale)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send this round's participants what the attack made of the global weights."""
        server_round += self.setup.done
        attack, broadcast = self.setup.attack, arrays
        self._sent = decode(arrays)
        if attack.crafts():
            own = {name: weight.clone() for name, weight in self._sent.items()}
            crafted = attack.craft(self.setup.model, self.setup.task, server_round, own)
            if problem := reply_problem(crafted, self._sent):
                raise FedsimError(f"{type(attack).__name__}.craft changed the model's form: {problem}")
            self._sent, broadcast = crafted, encode(crafted)
        self._guard.begin(self._sent)
        self._grid = grid
        self._asked = self.setup.federation.participants(self.setup.seed, server_round)
        node_of = {client: node for node, client in self.nodes.items()}
        return [
            Message(
                RecordDict({"arrays": broadcast, "you": told_number(client)}),
                node_of[client],
                MessageType.TRAIN,
                group_id=str(server_round),
            )
            for client in self._asked
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord | None]:
        """Check, observe and average the replies as they come; a bad one is reported and left out."""
        server_round += self.setup.done
        rules, faults, mean = self.setup.federation, list[Fault](), RunningMean()
        summed = list[Observation]()
        for client, reply in self._in_order(replies):
            try:
                observation = self._observe(server_round, client, reply)
                weight = float(observation.num_examples or 1)
                self._check_size(observation, weight)
            except Exception as error:  # whatever is wrong with a reply is its sender's fault, nobody else's
                reason = shortened(in_words(error))
                faults.append(Fault(round=server_round, client=client, reason=reason))
                log.warning("round %d, client %d: %s; left out", server_round, client, reason)
                self.setup.keep_fault(faults[-1])
                continue
            if self.setup.audit is not None and not self._passes(self.setup.audit, observation, reply):
                weight *= self.setup.audit.rejected_weight
            mean.add(observation.received, weight)
            if self.setup.sums_replies:
                summed.append(dataclasses.replace(observation, received=self._sent))  # it never saw this one
            elif rules.attacks(server_round, client):
                self.setup.keep_observation(observation)
        if not mean.weight and mean.sum:  # all were rejected: nothing is learnt this round
            return encode(self._sent), None
        if not mean.weight:
            raise FedsimError(
                f"round {server_round}: none of {len(faults)} clients gave a valid reply; the first, "
                f"client {faults[0].client}: {faults[0].reason}. Remedy: mend that, or lower the learning "
                "rate if tensors became NaN. Earlier rounds are kept in the run folder."
            )
        if summed and rules.attacks(server_round, ALL):
            received = {name: tensor / mean.weight for name, tensor in mean.sum.items()}
            self.setup.keep_observation(sum_of(summed, received))
        step = rules.server_step / mean.weight
        return encode({name: sent.add(mean.sum[name], alpha=step) for name, sent in self._sent.items()}), None

    def _in_order(self, replies: Iterable[Message]) -> Iterator[tuple[int, Message | None]]:
        """Yield every asked client with its reply, or None, by rising number and as early as possible.

        The order of a sum changes its last bits, so this is what makes engines agree.
        """
        early: dict[int, Message] = {}
        waiting = list(reversed(self._asked))
        for reply in replies:
            if (sender := self.nodes.get(reply.metadata.src_node_id)) is None:
                continue  # Flower's own word that a reply was lost
            early[sender] = reply
            while waiting and waiting[-1] in early:
                client = waiting.pop()
                yield client, early.pop(client)
        for client in reversed(waiting):
            yield client, early.get(client)

    def _observe(self, round: int, client: int, reply: Message | None) -> Observation:
        """Turn a reply into an Observation; whatever is wrong with it is an error."""
        if reply is None:
            raise FedsimError(f"no reply within {self.setup.federation.timeout:g} s")
        if reply.has_error():
            reason = " ".join((reply.error.reason or "").split())  # Ray's come in many lines
            raise FedsimError(shortened(reason) or f"error code {reply.error.code} without a reason")
        received = decode(arrays_of(reply))
        disclosed, size = reply.content.get("disclosed", MetricRecord()), reply.content.get("size")
        if not isinstance(disclosed, MetricRecord):
            raise FedsimError(f"disclosed: expected a MetricRecord, got {type(disclosed).__name__}")
        if "num_examples" in self.setup.federation.disclose and "num_examples" not in disclosed:
            raise FedsimError("num_examples is missing, by which replies are weighted")
        return Observation(
            round=round,
            client=client,
            sent=self._sent,
            received=received,
            kind=self.setup.federation.reply_kind,
            learning_rate=_number(disclosed, "learning_rate"),
            local_steps=_count(disclosed, "local_steps"),
            num_examples=_count(disclosed, "num_examples"),
            loss=_number(disclosed, "loss"),
            class_counts=_counts(disclosed, "class_counts", self.setup.task.num_classes),
            batch_norm=self.setup.federation.batch_norm,
            bytes=_count(size, "bytes") if isinstance(size, MetricRecord) else dense_bytes(received),
        )

    def _check_size(self, observation: Observation, weight: float) -> None:
        """Refuse a reply that would overflow the mean, or wreck the model for honest clients."""
        place = observation.round, observation.client
        share, step = weight * len(self._asked), self.setup.federation.server_step
        self._guard.check(observation.received, *place, share=share, step=step)

    def _honest_gradient(self, weights: Weights) -> Weights:
        """Return what an honest client would answer, by some test images."""
        model, images = self._verifier(), self.setup.test
        some = torch.arange(min(PROBED, len(images.labels)))
        load_weights(model, weights)
        return batch_gradient(model, images.batch(some), images.labels[some])[0]

    def _passes(self, audit: Audit, observation: Observation, reply: Message | None) -> bool:
        """Have the audit judge a reply before it counts."""
        assert reply is not None
        proof = reply.content.get("proof")
        sent = proof.get("sealed") if isinstance(proof, ConfigRecord) else None
        sealed = sent if isinstance(sent, bytes) else b""
        if audit.keep:
            self.setup.keep_proof(observation.round, observation.client, sealed)
        verdict = audit.examine(
            Submission(
                round=observation.round,
                client=observation.client,
                proof=sealed,
                model=self._verifier(),
                sent=self._sent,
                received=observation.received,
                num_examples=observation.num_examples,
                task=self.setup.task,
                batch_size=self.setup.federation.batch_size,
                steps=self.setup.federation.local_steps,
                learning_rate=self.setup.federation.local_lr,
                reveal=lambda steps: self._reveal(reply.metadata.src_node_id, steps),
                seed=self.setup.seed,
            )
        )
        self.setup.keep_verdict(verdict)
        if not verdict.accepted:
            log.info("round %d, client %d: rejected: %s", verdict.round, verdict.client, verdict.reason)
        return verdict.accepted

    def _verifier(self) -> nn.Module:
        """Return a model of the server's own, in the mode that clients train in."""
        if self._audited is None:
            self._audited = copy.deepcopy(self.setup.model)
            set_batch_norm(self._audited, self.setup.federation.batch_norm)
        return self._audited

    def _reveal(self, node: int, steps: Sequence[int]) -> list[Batch]:
        """Ask a client for the batches of some of its steps."""
        assert self._grid is not None
        question = RecordDict({"steps": ConfigRecord({"steps": list(steps)})})
        messages = [Message(question, node, MessageType.QUERY)]
        for reply in self._grid.send_and_receive(messages, timeout=self.setup.federation.timeout):
            if reply.has_error():
                raise FedsimError(reply.error.reason or f"error code {reply.error.code}")
            shown = decode(arrays_of(reply))
            try:
                return [Batch(images=shown[f"images {s}"], labels=shown[f"labels {s}"]) for s in steps]
            except KeyError as error:
                raise FedsimError(f"{error} is missing") from error
        raise FedsimError("no answer")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: the server tests the model itself."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing to aggregate."""
        return None

    def summary(self) -> None:
        """Say nothing: the run folder tells it all."""


def sum_of(parts: Sequence[Observation], received: Weights) -> Observation:
    """Return what the server saw of a round whose replies came as their mean, weighted by examples."""

    def told(name: str) -> list[Any]:
        """Return what all of them told, or nothing."""
        found = [getattr(part, name) for part in parts]
        return [] if None in found else found

    def shared(name: str) -> Any:
        found = set(told(name))
        return found.pop() if len(found) == 1 else None

    return dataclasses.replace(
        parts[0],
        client=ALL,
        clients=tuple(part.client for part in parts),
        received=received,
        learning_rate=shared("learning_rate"),
        local_steps=shared("local_steps"),
        num_examples=sum(told("num_examples")) or None,
        bytes=sum(told("bytes")) // len(parts) or None,  # of one client's reply
        loss=fmean(told("loss")) if told("loss") else None,
        class_counts=tuple(map(sum, zip(*told("class_counts"), strict=True))) or None,
    )


@dataclass
class RunningMean:
    """A weighted sum of replies that grows by one reply at a time."""

    sum: dict[str, Tensor] = field(default_factory=dict)
    weight: float = 0.0

    def add(self, reply: Weights, weight: float) -> None:
        """Add a reply with its weight."""
        self.weight += weight
        for name, tensor in reply.items():
            if name in self.sum:
                self.sum[name].add_(tensor, alpha=weight)
            else:
                self.sum[name] = tensor * weight


def test_round(setup: ServerSetup, round: int, weights: Weights, seconds: float) -> MetricRecord | None:
    """Test the global model on the test images and keep the result."""
    if not setup.federation.evaluates(round):
        return None
    accuracy, loss = evaluate_model(setup.model, weights, setup.test, setup.device)
    setup.keep_round(RoundResult(round=round, accuracy=accuracy, loss=loss, seconds=float(f"{seconds:.3f}")))
    log.info("round %d: test accuracy %.4f, loss %.4f", round, accuracy, loss)
    return MetricRecord({"accuracy": accuracy, "loss": loss})


def evaluate_model(
    model: nn.Module, weights: Weights, images: Images, device: str, chunk: int = 500
) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy of a model with these weights."""
    load_weights(model.to(device), weights)
    correct, loss = 0, 0.0
    with torch.no_grad():
        for indices in torch.split(torch.arange(len(images.labels)), chunk):
            labels = images.labels[indices].to(device)
            logits = model(images.batch(indices).to(device))
            correct += int((logits.argmax(1) == labels).sum())
            loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
    return correct / len(images.labels), loss / len(images.labels)


def _number(disclosed: Mapping[str, object], name: str) -> float | None:
    value = disclosed.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        raise FedsimError(f"{name}: expected a number from 0 to {LARGEST:g}, got {str(value)[:40]}")
    return float(value)


def _count(disclosed: Mapping[str, object], name: str) -> int | None:
    value = disclosed.get(name)
    if value is not None and (not isinstance(value, int) or not 1 <= value <= MOST):
        raise FedsimError(f"{name}: expected a whole number from 1 to {MOST}, got {str(value)[:40]}")
    return value


def _counts(disclosed: Mapping[str, object], name: str, classes: int) -> tuple[int, ...] | None:
    value = disclosed.get(name)
    if value is None:
        return None
    whole = isinstance(value, list) and all(isinstance(n, int) and 0 <= n <= MOST for n in value)
    if not isinstance(value, list) or not whole or len(value) != classes:
        raise FedsimError(f"{name}: expected {classes} whole numbers, got {str(value)[:80]}")
    return tuple(value)
