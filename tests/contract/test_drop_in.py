"""The ready strategies in somebody else's ServerApp, with a quickstart ClientApp as it is."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from common.errors import AggregationError
from deploy.engines.inline import InlineGrid
from server_app.strategies import FedAvg, FedPCD, FedPVR
from server_app.strategy import MethodStrategy

NODES = 6


# ---------------------------------------------------------------- somebody else's task.py


class Net(nn.Module):
    """A small CNN with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        logits: torch.Tensor = self.fc(x)
        return logits


def load_data(partition: int, skew: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A bright row tells the class; a skewed client has (almost) one class only."""
    generator = torch.Generator().manual_seed(partition if skew else 0)
    labels = torch.randint(0, 3, (48,), generator=generator)
    if skew:
        labels[6:] = partition % 3
    images = torch.rand((48, 1, 4, 4), generator=generator)
    images[torch.arange(48), 0, labels] += 1
    return images, labels


def train(net: Net, images: torch.Tensor, labels: torch.Tensor, lr: float) -> float:
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    losses = []
    for start in range(0, 48, 16):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            net(images[start : start + 16]), labels[start : start + 16]
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


# ---------------------------------------------------------------- somebody else's client_app.py


def quickstart(*, skew: bool) -> ClientApp:
    app = ClientApp()

    def received(msg: Message) -> Net:
        model = Net()
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict(), strict=True)
        return model

    @app.train()
    def fit(msg: Message, context: Context) -> Message:
        model = received(msg)
        images, labels = load_data(int(context.node_config["partition-id"]), skew)
        train_loss = train(model, images, labels, msg.content["config"]["lr"])
        metrics = {"train_loss": train_loss, "num-examples": len(labels)}
        record = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord(metrics),
        }
        return Message(content=RecordDict(record), reply_to=msg)

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        model = received(msg).eval()
        images, labels = load_data(int(context.node_config["partition-id"]), skew)
        with torch.no_grad():
            logits = model(images)
        metrics = {
            "eval_loss": nn.functional.cross_entropy(logits, labels).item(),
            "eval_acc": (logits.argmax(1) == labels).float().mean().item(),
            "num-examples": len(labels),
        }
        return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)

    return app


# ---------------------------------------------------------------- somebody else's server_app.py


def first_model() -> ArrayRecord:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ArrayRecord(Net().state_dict())


def run(strategy: Strategy, *, skew: bool = True, rounds: int = 3) -> Result:
    results = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = ConfigRecord({"lr": 0.1})
        results.append(
            strategy.start(
                grid=grid, initial_arrays=first_model(), train_config=config, num_rounds=rounds
            )
        )

    grid = InlineGrid(quickstart(skew=skew), NODES, {}, workers=1)
    try:
        app(grid, Context(1, 0, {}, RecordDict(), {}))
    finally:
        grid.close()
    (result,) = results
    return result


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bits(result: Result) -> dict[str, bytes]:
    return {name: array.data for name, array in result.arrays.items()}


STRATEGIES: list[Callable[[], MethodStrategy]] = [
    lambda: FedPCD(tau=0.02, history=10, fraction_train=0.5),
    lambda: FedAvg(fraction_train=0.5),
    lambda: FedPCD(tau=0.3, history=1),
]


@pytest.mark.usefixtures("flower_identity")
@pytest.mark.parametrize("make", STRATEGIES)
def test_quickstart_app_runs_unchanged(make: Callable[[], MethodStrategy]) -> None:
    strategy = make()
    result = run(strategy)
    model = Net()
    before = first_model().to_torch_state_dict()
    state = result.arrays.to_torch_state_dict()
    model.load_state_dict(state, strict=True)
    assert list(state) == list(before)
    for name, value in before.items():
        assert state[name].dtype == value.dtype
        assert state[name].shape == value.shape
        assert not torch.equal(state[name], value)
        assert torch.isfinite(state[name]).all()
    assert state["norm.num_batches_tracked"] == 9
    assert list(result.train_metrics_clientapp) == [1, 2, 3]
    assert list(result.evaluate_metrics_clientapp) == [1, 2, 3]
    for number in (1, 2, 3):
        assert set(result.train_metrics_clientapp[number]) == {"train_loss"}
        assert set(result.evaluate_metrics_clientapp[number]) == {"eval_loss", "eval_acc"}
    first, *_, last = (m["train_loss"] for m in result.train_metrics_clientapp.values())
    assert last < first
    assert strategy.record is not None
    assert strategy.record.dropped == {}
    assert strategy.record.evaluation is not None
    fairness = strategy.record.evaluation.fairness
    assert fairness is not None
    assert fairness.mean == pytest.approx(result.evaluate_metrics_clientapp[3]["eval_acc"])


@pytest.mark.usefixtures("flower_identity")
def test_fedavg_gives_the_weights_of_flowers_fedavg() -> None:
    """The same weights from the same clients, but for the order of the sums."""
    ours, theirs = run(FedAvg()), run(FlowersFedAvg(min_available_nodes=NODES))
    state = theirs.arrays.to_torch_state_dict()
    for name, value in ours.arrays.to_torch_state_dict().items():
        torch.testing.assert_close(value, state[name].to(value.dtype), rtol=1e-4, atol=1e-5)
    for number in (1, 2, 3):
        assert ours.train_metrics_clientapp[number] == pytest.approx(
            dict(theirs.train_metrics_clientapp[number]), rel=1e-4
        )
        assert ours.evaluate_metrics_clientapp[number] == pytest.approx(
            dict(theirs.evaluate_metrics_clientapp[number]), rel=1e-3
        )


@pytest.mark.usefixtures("flower_identity")
def test_fedpcd_is_fedavg_for_clients_that_agree_and_not_for_others() -> None:
    pcd: dict[str, Any] = {"tau": 0.02, "history": 10, "fraction_train": 0.5}
    strategy = FedPCD(**pcd)
    agreed = run(strategy, skew=False)
    assert strategy.record is not None
    assert strategy.record.method["active"] == 0
    assert strategy.record.method["rows"] > 3
    assert bits(agreed) == bits(run(FedAvg(fraction_train=0.5), skew=False))
    assert bits(run(FedPCD(tau=0.3))) != bits(run(FedAvg()))


@pytest.mark.usefixtures("flower_identity")
def test_method_that_needs_its_own_client_stops_with_the_reason() -> None:
    strategy = FedPVR(block="fc", max_void_rounds=2)
    with pytest.raises(AggregationError, match="only FedKeel's ClientApp sends them"):
        run(strategy)
    assert strategy.record is not None
    assert len(strategy.record.dropped) == NODES
    assert all("fedpvr needs the vectors {'variate': 195}" in reason
               for reason in strategy.record.dropped.values())  # fmt: skip
