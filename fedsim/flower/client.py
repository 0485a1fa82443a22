"""The Flower client: local step(s) on private images, defences on what leaves, truth on the side."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor, nn
from torch.nn import functional

from fedsim.core.errors import FedsimError
from fedsim.core.federation import Federation
from fedsim.core.interfaces import Audit, Behaviour, Defense, LocalStep
from fedsim.core.randomness import generator
from fedsim.core.training import Batch, LocalWork, apply_step, batch_gradient, load_weights
from fedsim.core.types import Task, Truth, Weights, form_problem
from fedsim.data.batches import batch_indices
from fedsim.data.images import Images
from fedsim.flower.nodes import client_number, failure
from fedsim.flower.records import DecodeOnce, arrays_of, decode, encode
from fedsim.flower.states import ClientStates
from fedsim.flower.wire import FLOAT, dense_bytes, wire_bytes
from fedsim.storage.files import StorageError


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientSetup:
    """What a client works with. One object serves all clients of a process."""

    model: nn.Module  # on its device
    train: Images
    shares: tuple[Tensor, ...]  # indices of the images that each client owns
    federation: Federation
    defenses: tuple[Defense, ...]
    behaviours: tuple[Behaviour, ...]  # of every client; empty: all are honest
    audit: Audit | None
    task: Task
    seed: int
    device: str
    threads: int

    @property
    def has_memory(self) -> bool:
        """Whether a client's reply depends on its earlier ones."""
        proves_lies = self.audit is not None and bool(self.behaviours)
        return proves_lies or any(defense.keeps_rest for defense in self.defenses)


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
        """Show an audit the batches that it wants to see."""
        return Message(_shown(message.content["steps"], context), reply_to=message)

    def defend(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        made = setup()
        if made.defenses:
            round, client = _round(message), client_number(message)
            given: Weights = decode(arrays_of(reply))
            weights, bits = given, FLOAT
            for place, defense in enumerate(made.defenses):
                random = generator(made.seed, "defense", place, round, client)
                whole = _with_rest(weights, context, place) if defense.keeps_rest else weights
                weights = defense.on_reply(whole, made.federation.reply_kind, random)
                if defense.keeps_rest:
                    rest = {name: tensor - weights[name] for name, tensor in whole.items()}
                    context.state[f"rest {place}"] = encode(rest)
                bits = bits if defense.bits is None else defense.bits
            if problem := form_problem(weights, given):
                raise FedsimError(f"a defence changed the form of the reply: {problem}")
            reply.content["arrays"] = encode(weights)
            masked = any(defense.sums_replies for defense in made.defenses)  # masks leave no zero to skip
            sparse = any(defense.sparse for defense in made.defenses)
            size = dense_bytes(weights) if masked else wire_bytes(weights, bits, sparse=sparse)
            reply.content["size"] = MetricRecord({"bytes": size})
        return reply

    def remember(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not setup().has_memory:
            return call_next(message, context)
        states.restore(client_number(message), context)
        reply = call_next(message, context)
        states.keep(client_number(message), _round(message), context)
        return reply

    @app.train(mods=[_report_errors, remember, defend])
    def train(message: Message, context: Context) -> Message:
        made, round, client = setup(), _round(message), client_number(message)
        torch.set_num_threads(made.threads)  # sums depend on it: alike on every engine
        sent = decode_once(arrays_of(message))
        if made.audit is not None or made.behaviours:
            work = local_work(made, sent, round, client)
            content = _claimed_round(made, work, context)
            if made.federation.attacks(round, client):
                keep_truth(_truth_of(work))
            return Message(content, reply_to=message)
        reply, truth, told = local_round(made, sent, round, client)
        if made.federation.attacks(round, client):
            keep_truth(truth)
        disclosed = MetricRecord({name: told[name] for name in made.federation.disclose if name in told})
        return Message(RecordDict({"arrays": encode(reply), "disclosed": disclosed}), reply_to=message)

    return app


def local_round(
    setup: ClientSetup, sent: Weights, round: int, client: int
) -> tuple[Weights, Truth, dict[str, int | float | list[int]]]:
    """Compute a client's reply: its gradient (fedsgd) or its update after the local steps (fedavg).

    Returns the reply, the private images and labels that were used, and what there is to disclose.
    """
    rules, model = setup.federation, setup.model
    load_weights(model, sent)
    images_seen, labels_seen, losses = [], [], []
    gradient: Weights = {}
    for step in range(rules.local_steps):
        indices = step_indices(setup, round, client, step)
        images, labels = setup.train.batch(indices), setup.train.labels[indices]
        images_seen.append(images)
        labels_seen.append(labels)
        for place, defense in enumerate(setup.defenses):
            random = generator(setup.seed, "defense batch", place, round, client, step)
            images, labels = defense.on_batch(images, labels, random)
        if labels.ndim == 2:  # shares of the classes that were there
            labels = functional.pad(labels, (0, setup.task.num_classes - labels.shape[1]))
        images, labels = images.to(setup.device), labels.to(setup.device)
        gradient, loss = batch_gradient(model, images, labels)
        losses.append(loss)
        now = LocalStep(model=model, images=images, labels=labels)
        for place, defense in enumerate(setup.defenses):
            random = generator(setup.seed, "defense gradient", place, round, client, step)
            gradient = defense.on_gradient(gradient, now, random)
        if rules.mode == "fedavg":
            apply_step(model, gradient, rules.local_lr)
    truth = Truth(round=round, client=client, images=torch.cat(images_seen), labels=torch.cat(labels_seen))
    told: dict[str, int | float | list[int]] = {
        "num_examples": len(truth.labels),
        "loss": sum(losses) / len(losses),
        "class_counts": truth.labels.bincount(minlength=setup.task.num_classes).tolist(),
    }
    if rules.mode == "fedsgd":
        return {name: tensor.cpu() for name, tensor in gradient.items()}, truth, told
    told |= {"learning_rate": rules.local_lr, "local_steps": rules.local_steps}
    update = {name: p.detach().cpu() - sent[name] for name, p in model.named_parameters()}
    return update, truth, told


def step_indices(setup: ClientSetup, round: int, client: int, step: int) -> Tensor:
    """Return which images a client trains on in a local step of a round."""
    rules = setup.federation
    return batch_indices(
        setup.train.labels,
        setup.shares[client],
        batch_size=rules.batch_size,
        layout=rules.labels,
        replacement=rules.sampling == "with_replacement",
        seed=setup.seed,
        client=client,
        step=(round - 1) * rules.local_steps + step,
    )


def local_work(setup: ClientSetup, sent: Weights, round: int, client: int) -> LocalWork:
    """Return what a client is asked to do in a round of fedavg."""
    rules = setup.federation

    def batch(indices: Tensor) -> Batch:
        if not bool(torch.isin(indices, setup.shares[client]).all()):
            raise FedsimError("a client has no images but its own")
        images, labels = setup.train.batch(indices), setup.train.labels[indices]
        return Batch(images=images.to(setup.device), labels=labels.to(setup.device))

    return LocalWork(
        round=round,
        client=client,
        model=setup.model,
        sent=sent,
        steps=rules.local_steps,
        learning_rate=rules.local_lr,
        every=1 if setup.audit is None else setup.audit.every,
        indices=lambda step: step_indices(setup, round, client, step),
        batch=batch,
        task=setup.task,
        owned=setup.shares[client],
        generator=generator(setup.seed, "behaviour", round, client),
    )


def _claimed_round(setup: ClientSetup, work: LocalWork, context: Context) -> RecordDict:
    """Let the client behave as it does, and send its update, with a proof where an audit asks for one."""
    behaviour = setup.behaviours[work.client] if setup.behaviours else Behaviour()
    claim = behaviour.train(work)
    labels = torch.cat([batch.labels for batch in claim.batches])
    told: dict[str, int | float | list[int]] = {
        "num_examples": len(labels),
        "learning_rate": setup.federation.local_lr,
        "local_steps": setup.federation.local_steps,
        "class_counts": labels.bincount(minlength=setup.task.num_classes).tolist(),
    }
    disclosed = MetricRecord({name: told[name] for name in setup.federation.disclose if name in told})
    content = RecordDict({"arrays": encode(claim.update), "disclosed": disclosed})
    if setup.audit is not None:
        proof = setup.audit.prove(claim, seed=setup.seed, round=work.round, client=work.client)
        kept = context.state.get("proof")
        previous = kept.get("sealed") if isinstance(kept, ConfigRecord) else b""
        last = previous if isinstance(previous, bytes) else b""
        sent_proof = ConfigRecord({"sealed": behaviour.send(proof, last)})
        content["proof"] = sent_proof
        context.state["proof"] = sent_proof
        context.state["batches"] = encode(  # until the audit has asked for what it wants to see
            {
                f"{kind} {step}": getattr(batch, kind)
                for step, batch in enumerate(claim.batches)
                for kind in ("images", "labels")
            }
        )
    return content


def _truth_of(work: LocalWork) -> Truth:
    """Return the private examples of a round, whatever the client says of them."""
    batches = work.own_batches()
    images = torch.cat([batch.images for batch in batches]).cpu()
    labels = torch.cat([batch.labels for batch in batches]).cpu()
    return Truth(round=work.round, client=work.client, images=images, labels=labels)


def _shown(asked: object, context: Context) -> RecordDict:
    """Return the batches of these steps of the client's last round."""
    kept = context.state.get("batches")
    if not isinstance(asked, ConfigRecord) or not isinstance(kept, ArrayRecord):
        raise FedsimError("no batches are kept to be shown")
    steps = [int(step) for step in asked["steps"]]  # type: ignore[union-attr]
    names = [f"{kind} {step}" for step in steps for kind in ("images", "labels")]
    return RecordDict({"arrays": ArrayRecord({name: kept[name] for name in names})})


def _with_rest(weights: Weights, context: Context, place: int) -> Weights:
    """Add what a defence took away from this client's last reply."""
    kept = context.state.get(f"rest {place}")
    if not isinstance(kept, ArrayRecord):
        return weights
    rest = decode(kept)
    return {name: tensor + rest[name] for name, tensor in weights.items()}


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
