"""The client: one step of SGD on lines of its own a round."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from finetuning import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the global model on this client's next lines."""
    model, config = task.net(), message.content["config"]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    tokens, nexts = task.load_lines(
        context.node_config["partition-id"],
        context.node_config["num-partitions"],
        config["server-round"],
        context.run_config["batch-size"],
    )
    loss = task.train(model, tokens, nexts, config["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(tokens)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
