"""The ClientApp."""

import json

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from bench.reference.net import Net
from bench.reference.quickstart.task import load_data
from bench.reference.quickstart.task import train as train_fn
from bench.work import Work

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model on this partition's pictures."""
    config = message.content.config_records["config"]
    work = Work(**json.loads(str(config["work"])))
    net = Net()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    batches = load_data(work, int(context.node_config["partition-id"]))
    loss = train_fn(net, batches, work.lr)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(batches.dataset)})  # type: ignore[arg-type]
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
