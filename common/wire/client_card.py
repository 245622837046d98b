"""ClientCard: what a client says about its data before it gets an order."""

from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from flwr.app import ConfigRecord, RecordDict

from common.errors import WireError
from common.io.text import name_list, single_line
from common.wire.content import CONFIG
from common.wire.messages import config_of
from common.wire.reply_metrics import MAX_EXAMPLES

MAX_SIDE = 4096  # pixels, as for data.image-size
MAX_CLASSES = 100_000


@dataclass(frozen=True)
class DataKind:
    """The kind of data that all clients of a run must have.

    Attributes:
        shape: channels, height and width of the images.
        classes: number of classes.
    """

    shape: tuple[int, int, int]
    classes: int

    def __str__(self) -> str:
        return f"images {self.shape} of {self.classes} classes"


@dataclass(frozen=True)
class ClientCard:
    """The answer of a client that is ready to a query: its data and its device.

    Attributes:
        partition: number of the client's part of a partitioned data set, "" for its own images.
        device: a sentence that says on which device the client trains.
        shape: channels, height and width of its images.
        classes: number of classes.
        train_examples: training samples.
        test_examples: test samples.
    """

    partition: str
    device: str
    shape: tuple[int, int, int]
    classes: int
    train_examples: int
    test_examples: int

    @property
    def kind(self) -> DataKind:
        """The kind of its data."""
        return DataKind(self.shape, self.classes)

    def record(self) -> RecordDict:
        """Return the card as a ConfigRecord."""
        values = {**vars(self), "shape": list(self.shape)}
        return RecordDict({CONFIG: ConfigRecord(values)})

    @classmethod
    def read(cls, content: RecordDict) -> "ClientCard":
        """Return the card in a message.

        Raises:
            WireError: the message holds no card, or a number of it is impossible.
        """
        values: dict[str, Any] = dict(config_of(content))
        types = {name: type(value) for name, value in values.items()}
        if types != _card_types() or len(values["shape"]) != 3:
            raise WireError(
                f"expected a client's card, got the keys {name_list(sorted(values))}; both sides "
                "must run the same version of FedKeel"
            )
        numbers = {
            **{f"shape[{k}]": (size, 1, MAX_SIDE) for k, size in enumerate(values["shape"])},
            "classes": (values["classes"], 1, MAX_CLASSES),
            "train_examples": (values["train_examples"], 0, MAX_EXAMPLES),
            "test_examples": (values["test_examples"], 0, MAX_EXAMPLES),
        }
        for key, (value, low, high) in numbers.items():
            if not isinstance(value, int) or not low <= value <= high:
                raise WireError(
                    f"expected {key} of a client's card from {low} to {high}, got {value!r}"
                )
        texts = {key: single_line(values[key]) for key in ("partition", "device")}
        return cls(**{**values, **texts, "shape": tuple(values["shape"])})


@cache
def _card_types() -> dict[str, Any]:
    return {**get_type_hints(ClientCard), "shape": list}
