"""The Flower client: local step(s) on private images, defences on what leaves, truth on the side."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor, nn
from torch.nn import functional

from fedsim.data.batches import batch_indices
from fedsim.data.images import Images
from fedsim.errors import FedsimError, in_words
from fedsim.federation import Federation
from fedsim.interfaces import Defense, LocalStep
from fedsim.randomness import generator
from fedsim.records import DecodeOnce, arrays_of, decode, encode
from fedsim.types import Truth, Weights, form_problem
from fedsim.wire import FLOAT, dense_bytes, wire_bytes

CLIENT_FAILED = 2  # Flower's code for an exception in the client's own code


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientSetup:
    """What a client works with. One object serves all clients of a process."""

    model: nn.Module  # on its device
    train: Images
    shares: tuple[Tensor, ...]  # indices of the images that each client owns
    federation: Federation
    defenses: tuple[Defense, ...]
    num_classes: int
    seed: int
    device: str
    threads: int


def client_app(setup: Callable[[], ClientSetup], keep_truth: Callable[[Truth], None]) -> ClientApp:
    """Build the ClientApp. `setup` is called inside the process that runs the client.

    `keep_truth` is the side channel: it takes the private batch to the evaluator without a message.
    """
    decode_once = DecodeOnce()
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        return Message(RecordDict({"who": ConfigRecord({"client": _number(context)})}), reply_to=message)

    def defend(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        made = setup()
        if made.defenses:
            round, client = _round(message), _number(context)
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
            size = dense_bytes(weights) if masked else wire_bytes(weights, bits)
            reply.content["size"] = MetricRecord({"bytes": size})
        return reply

    @app.train(mods=[_report_errors, defend])
    def train(message: Message, context: Context) -> Message:
        made, round, client = setup(), _round(message), _number(context)
        torch.set_num_threads(made.threads)  # sums depend on it: alike on every engine
        sent = decode_once(arrays_of(message))
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
        indices = batch_indices(
            setup.train.labels,
            setup.shares[client],
            batch_size=rules.batch_size,
            layout=rules.labels,
            replacement=rules.sampling == "with_replacement",
            seed=setup.seed,
            client=client,
            step=(round - 1) * rules.local_steps + step,
        )
        images, labels = setup.train.batch(indices), setup.train.labels[indices]
        images_seen.append(images)
        labels_seen.append(labels)
        for place, defense in enumerate(setup.defenses):
            random = generator(setup.seed, "defense batch", place, round, client, step)
            images, labels = defense.on_batch(images, labels, random)
        if labels.ndim == 2:  # shares of the classes that were there
            labels = functional.pad(labels, (0, setup.num_classes - labels.shape[1]))
        images, labels = images.to(setup.device), labels.to(setup.device)
        gradient, loss = batch_gradient(model, images, labels)
        losses.append(loss)
        now = LocalStep(model=model, images=images, labels=labels)
        for place, defense in enumerate(setup.defenses):
            random = generator(setup.seed, "defense gradient", place, round, client, step)
            gradient = defense.on_gradient(gradient, now, random)
        if rules.mode == "fedavg":
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.sub_(gradient[name], alpha=rules.local_lr)
    truth = Truth(round=round, client=client, images=torch.cat(images_seen), labels=torch.cat(labels_seen))
    told: dict[str, int | float | list[int]] = {
        "num_examples": len(truth.labels),
        "loss": sum(losses) / len(losses),
        "class_counts": truth.labels.bincount(minlength=setup.num_classes).tolist(),
    }
    if rules.mode == "fedsgd":
        return {name: tensor.cpu() for name, tensor in gradient.items()}, truth, told
    told |= {"learning_rate": rules.local_lr, "local_steps": rules.local_steps}
    update = {name: p.detach().cpu() - sent[name] for name, p in model.named_parameters()}
    return update, truth, told


def batch_gradient(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Weights, float]:
    """Return the gradient of the mean cross-entropy over a batch, and the loss."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    loss = functional.cross_entropy(model(images), labels)
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return dict(zip(names, gradients, strict=True)), float(loss.detach())


def load_weights(model: nn.Module, weights: Weights) -> None:
    """Copy weights into a model's parameters."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():  # all in one call: small tensors cost more to call than to copy
        torch._foreach_copy_(list(parameters.values()), [weights[name] for name in parameters])


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
    except Exception as error:
        reason = f"the client failed: {in_words(error)}"
        return Message(Error(code=CLIENT_FAILED, reason=reason), reply_to=message)


def _round(message: Message) -> int:
    return int(message.metadata.group_id)  # Flower's place for the round


def _number(context: Context) -> int:
    return int(context.node_config["partition-id"])
