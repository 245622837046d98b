"""What the server needs at most is told in parts that can be added up by hand."""

from common.layout import Layout, Tensor
from common.methods import METHODS
from server_app.footprint import MODELS, Footprint

PLAIN = Layout((Tensor("weight", (250_000,)),))  # a model of 1 MB
MB = 1_000_000


def test_fedpcd_needs_its_window_the_replies_twice_and_the_model_some_times() -> None:
    needs = Footprint.of(METHODS["fedpcd"](history=10), PLAIN, clients=1000, asked=5)
    assert needs == Footprint(55 * MB, 5 * MB, 5 * MB, MODELS * MB)
    assert needs.total == (65 + MODELS) * MB
    assert str(needs) == "73 MB (55 remembered, 5.0 replies, 5.0 updates, 8.0 models)"


def test_a_history_never_holds_more_than_all_clients() -> None:
    needs = Footprint.of(METHODS["fedpcd"](history=10), PLAIN, clients=20, asked=5)
    assert needs.remembered == 20 * MB


def test_what_lies_in_files_needs_no_memory() -> None:
    needs = Footprint.of(METHODS["fedpcd"](), PLAIN, clients=1000, asked=5, on_disk=True)
    assert needs.remembered == 0
    assert "remembered" not in str(needs)


def test_vectors_of_the_method_s_own_travel_both_ways() -> None:
    plain = Footprint.of(METHODS["fedavg"](), PLAIN, clients=100, asked=5)
    scaffold = Footprint.of(METHODS["scaffold"](), PLAIN, clients=100, asked=5)
    assert scaffold.replies == 3 * plain.replies
    assert scaffold.remembered == 102 * MB


def test_buffers_travel_in_double_precision() -> None:
    layout = Layout(PLAIN.tensors, (Tensor("running_mean", (125_000,)),))
    needs = Footprint.of(METHODS["fedavg"](), layout, clients=100, asked=5)
    assert needs.replies == 10 * MB
