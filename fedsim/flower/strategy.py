"""FedSGD and FedAvg as a Flower strategy with a malicious server's two hooks: what is sent, what is seen."""

import copy
import dataclasses
import functools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import nn

from fedsim.core.errors import REFUSED, FedsimError, in_words, shortened
from fedsim.core.types import ALL, Fault, Observation, Weights, reply_problem
from fedsim.flower.auditing import hear_commitments, passes
from fedsim.flower.averaging import RunningMean, sum_of
from fedsim.flower.masked_sum import MaskedRound
from fedsim.flower.nodes import addressed_to
from fedsim.flower.observations import Dialect, Question, observation_of
from fedsim.flower.overflow import Guard, honest_gradient
from fedsim.flower.records import decode, encode
from fedsim.flower.setups import ServerSetup
from fedsim.models.batch_norm import set_batch_norm

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ObservingStrategy(Strategy):
    """Broadcasts what the attack makes of the weights; checks, observes and averages the replies."""

    setup: ServerSetup
    nodes: dict[int, int]  # Flower node id -> client number
    _honest: Weights = field(default_factory=dict)  # that training goes on from
    _sent: Weights = field(default_factory=dict)  # the broadcast
    _tailored: dict[int, Weights] = field(default_factory=dict)  # what clients got in place of it
    _masked: MaskedRound | None = None
    _hidden: dict[int, Weights] = field(default_factory=dict)  # masked replies, until they are added
    _asked: Sequence[int] = ()
    _grid: Grid | None = None

    @functools.cached_property
    def _guard(self) -> Guard:
        def probe(weights: Weights) -> Weights:
            return honest_gradient(self._own_model, self.setup.test, weights)

        return Guard(probe=None if self.setup.attack.crafts() else probe, first=self.setup.first_scale)

    @functools.cached_property
    def _own_model(self) -> nn.Module:
        """A model to compute with, in the mode that clients train in."""
        model = copy.deepcopy(self.setup.model)
        set_batch_norm(model, self.setup.federation.batch_norm)
        return model

    @functools.cached_property
    def _dialect(self) -> Dialect:
        rules = self.setup.federation
        return Dialect(
            replies=rules.reply_kind,
            batch_norm=rules.batch_norm,
            strict=True,
            disclosed="disclosed",
            size="size",
            class_counts=("class_counts",),
            num_classes=self.setup.task.num_classes,
            required=("num_examples",) if "num_examples" in rules.disclose else (),
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send this round's participants what the attack made of the global weights."""
        server_round += self.setup.done
        self._honest, self._grid = decode(arrays), grid
        self._asked = self._trusted(self.setup.federation.participants(self.setup.seed, server_round))
        self._sent = self._crafted(server_round)
        self._guard.begin(self._sent)
        node_of = {client: node for node, client in self.nodes.items() if client in self._asked}
        node_of = dict(sorted(node_of.items()))
        if (audit := self.setup.audit) is not None and audit.commits:
            hear_commitments(self.setup, audit, grid, node_of, server_round)
        if self.setup.masks:
            rules, degree = self.setup.federation, next(d.neighbours for d in self.setup.defenses if d.masks)
            self._masked = MaskedRound(
                grid, node_of, server_round, self.setup.seed, degree, timeout=rules.timeout
            )
            self._masked.begin()
        broadcast = arrays if self._sent is self._honest else encode(self._sent)
        questions = list[Message]()
        for client in self._asked if self._masked is None else self._masked.near:
            content = RecordDict({"arrays": self._arrays_for(client, broadcast), "you": addressed_to(client)})
            for name, record in ({} if self._masked is None else self._masked.question(client)).items():
                content[name] = record
            questions.append(Message(content, node_of[client], MessageType.TRAIN, group_id=str(server_round)))
        return questions

    def _crafted(self, round: int) -> Weights:
        """Return what is broadcast, and note what clients get in place of it."""
        attack, model, task = self.setup.attack, self.setup.model, self.setup.task
        self._tailored = {}
        if not attack.crafts_in(round):
            return self._honest
        own = {name: weight.clone() for name, weight in self._honest.items()}
        broadcast = attack.craft(model, task, round, own)
        for client in self._asked:
            if (tailored := attack.tailor(model, task, round, client, broadcast)) is not broadcast:
                self._tailored[client] = tailored
        for crafted in (broadcast, *self._tailored.values()):
            if problem := reply_problem(crafted, self._honest):
                raise FedsimError(f"{type(attack).__name__}.craft changed the model's form: {problem}")
        return broadcast

    def _arrays_for(self, client: int, broadcast: ArrayRecord) -> ArrayRecord:
        """Return what a client is sent; tensors that are the broadcast's are not copied for it."""
        if client not in self._tailored:
            return broadcast
        own = {n: t for n, t in self._tailored[client].items() if t is not self._sent[n]}
        return ArrayRecord({**broadcast, **encode(own)})

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord | None]:
        """Check, observe and average the replies as they come; a bad one is reported and left out."""
        server_round += self.setup.done
        rules, faults, mean = self.setup.federation, list[Fault](), RunningMean()
        summed, attacked = list[Observation](), self._attacks(server_round)
        for client, reply in self._in_order(replies):
            try:
                if reply is None:
                    raise FedsimError(f"no reply within {rules.timeout:g} s")
                observation = self._observe(server_round, client, reply)
            except Exception as error:  # whatever is wrong with a reply is its sender's fault, nobody else's
                reason = shortened(in_words(error))
                faults.append(Fault(round=server_round, client=client, reason=reason))
                log.warning("round %d, client %d: %s; left out", server_round, client, reason)
                self.setup.keep_fault(faults[-1])
                continue
            hidden = self._hidden.pop(client, None)
            mean.add(hidden or observation.received, self._weight(observation, reply), scaled=bool(hidden))
            if self.setup.sums_replies:
                # It never saw this reply; what clients got in place of the broadcast, the attack says again.
                summed.append(dataclasses.replace(observation, sent=self._sent, received=self._sent))
            elif attacked and rules.attacks(server_round, client):
                self.setup.keep_observation(observation, own_sent=client in self._tailored)
        refused = bool(faults) and all(fault.reason.startswith(REFUSED) for fault in faults)
        if not mean.weight and (mean.sum or not self._asked or refused):  # nothing is learnt this round
            return encode(self._honest if refused else self._sent), None
        if not mean.weight:
            raise FedsimError(
                f"round {server_round}: none of {len(faults)} clients gave a valid reply; the first, "
                f"client {faults[0].client}: {faults[0].reason}. Remedy: mend that, or lower the learning "
                "rate if tensors became NaN. Earlier rounds are kept in the run folder."
            )
        if self._masked is not None:
            mean = self._unmasked(mean, summed)
        if summed and attacked and rules.attacks(server_round, ALL):
            beside = 0 if self._masked is None else self._masked.heard
            self.setup.keep_observation(sum_of(summed, mean.mean(), beside))
        if attacked and self.setup.attack.crafts() and self.setup.attack.keeps_honest:
            return encode(self._honest), None
        step = rules.server_step / mean.weight
        return encode({name: sent.add(mean.sum[name], alpha=step) for name, sent in self._sent.items()}), None

    def _attacks(self, round: int) -> bool:
        """Say whether the attack looks at this round: one that crafts, at those that it crafted."""
        attack = self.setup.attack
        return not attack.crafts() or attack.crafts_in(round)

    def _unmasked(self, masked: RunningMean, answered: Sequence[Observation]) -> RunningMean:
        """Return the sum of the replies, of which the server has seen masks alone."""
        assert self._masked is not None
        total = self._masked.unmasked(masked.sum, [seen.client for seen in answered])
        plain = {name: tensor.to(self._sent[name].dtype) for name, tensor in total.items()}
        return RunningMean(sum=plain, weight=masked.weight)

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

    def _trusted(self, clients: Sequence[int]) -> list[int]:
        """Leave out clients that an audit rejected too often: they learn no more of the model, either."""
        most = 0 if self.setup.audit is None else self.setup.audit.exclude_after
        return [c for c in clients if not most or self.setup.rejections.get(c, 0) < most]

    def _observe(self, round: int, client: int, reply: Message) -> Observation:
        """Read a reply; refuse one that would overflow the mean, or wreck the model for honest clients."""
        sent = self._tailored.get(client, self._sent)
        question = Question(sent=sent, exact=sent)
        if self._masked is not None and not reply.has_error():
            self._hidden[client] = self._masked.numbers(reply, sent)
            reply.content["arrays"] = encode(sent)  # of a masked reply, its figures are all there is to read
        observation = observation_of(reply, question, self._dialect, round=round, client=client)
        share = float(observation.num_examples or 1) * len(self._asked)
        step = self.setup.federation.server_step
        self._guard.check(observation.received, round, client, share=share, step=step)
        return observation

    def _weight(self, observation: Observation, reply: Message) -> float:
        """Return a reply's weight in the mean: its examples, if an audit has no objection."""
        weight, audit = float(observation.num_examples or 1), self.setup.audit
        if audit is None:
            return weight
        assert self._grid is not None
        accepted = passes(self.setup, audit, self._own_model, self._grid, observation, reply)
        return weight if accepted else weight * audit.rejected_weight

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
