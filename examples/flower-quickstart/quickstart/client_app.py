"""The client: one step of SGD on a batch of its own a round."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the global model on this client's next batch."""
    net, config = task.Net(), message.content["config"]
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    pixels, labels = task.load_pixels(
        context.node_config["partition-id"],
        context.node_config["num-partitions"],
        config["server-round"],
        context.run_config["batch-size"],
    )
    loss = task.train(net, task.normalise(pixels), labels, config["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(labels)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test the global model on this client's test images."""
    net = task.Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss, accuracy, number = task.test(
        net, context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": number})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
