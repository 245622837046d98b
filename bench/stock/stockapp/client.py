"""A client that takes the model into torch, changes it a little, and returns it."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the model that came, a little lower."""
    named = message.content.array_records["arrays"].to_torch_state_dict()
    lower = {name: tensor - torch.tensor(1e-3) for name, tensor in named.items()}
    content = {"arrays": ArrayRecord(lower), "metrics": MetricRecord({"num-examples": 10})}
    return Message(RecordDict(content), reply_to=message)
