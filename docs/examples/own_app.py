"""A Flower app that is not FedKeel's: its own model and clients, with the FedPCD strategy.

The clients return "arrays" and "num-examples", as in Flower's quickstart, and know nothing of
FedPCD. Name the apps in your pyproject.toml as usual ("own_app:server" and "own_app:client").
"""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch.nn.functional import cross_entropy

from fedkeel import FedPCD

client = ClientApp()
server = ServerApp()


def net() -> torch.nn.Sequential:
    """Return a small classifier; any model will do."""
    return torch.nn.Sequential(
        torch.nn.Linear(2, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
    )


def samples(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this client's data: points left or right of a line that is its own."""
    number = int(context.node_config["partition-id"])
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(number))
    return x, (x[:, 0] + 0.2 * number * x[:, 1] > 0).long()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Take ten steps."""
    model, (x, y) = net(), samples(context)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"])
    for _ in range(10):
        optimiser.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": len(y), "train_loss": loss.item()})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Report the accuracy on this client's data."""
    model, (x, y) = net(), samples(context)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.eval()
    accuracy = (model(x).argmax(1) == y).float().mean().item()
    metrics = MetricRecord({"num-examples": len(y), "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedPCD; `fraction_evaluate=0` would leave the evaluation out."""
    strategy = FedPCD(tau=0.02, history=10, fraction_train=0.5)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net().state_dict()),
        num_rounds=5,
        train_config=ConfigRecord({"lr": 0.1}),
    )
    net().load_state_dict(result.arrays.to_torch_state_dict())  # the final model, buffers included
    context.state["accuracy"] = result.evaluate_metrics_clientapp[5]
