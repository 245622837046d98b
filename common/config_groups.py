"""The groups of the run config: data, training, server, diagnostics, conformal prediction."""

from dataclasses import dataclass

from common.data.image_folder.folder_options import FolderOptions
from common.data.partition import PARTITIONS, PartitionOptions
from common.data.splits import MIN_TEST
from common.settings import Settings, setting


@dataclass(frozen=True)
class DataConfig(Settings):
    """The data, and how they are dealt to the clients."""

    name: str = setting(
        "digits",
        "digits, fashion-mnist, cifar10, cifar100, folder:PATH (train/CLASS, test/CLASS), or own: "
        "each client's own folder",
    )
    classes: str = setting(
        "", "classes of the federation for data.name = own, in order, separated by commas"
    )
    channels: int = setting(3, "channels for data.name = own: 1 (grey) or 3 (RGB)", choices=(1, 3))
    max_bad: float = setting(
        FolderOptions.max_bad,
        "largest tolerated share of unusable files in a folder",
        low=0,
        high=1,
    )
    root: str = setting("", "folder of data sets and downloads. Empty: $FEDKEEL_DATA, else ./data")
    download: bool = setting(True, "download a missing data set")
    image_size: int = setting(
        0,
        "side of the images of a folder in pixels. 0 keeps a common size or chooses one. "
        "data.name = own needs a side",
        low=0,
        high=4096,
    )
    partition: str = setting(
        "dirichlet-client", "how samples are dealt to clients", choices=tuple(PARTITIONS)
    )
    alpha: float = setting(
        PartitionOptions.alpha,
        "Dirichlet concentration. A small value gives skewed clients",
        low=0,
        open_low=True,
    )
    shards_per_client: int = setting(
        PartitionOptions.shards_per_client,
        "number of single-label pieces per client, for the partition shards",
        low=1,
    )
    min_size: int = setting(
        0, "fewest samples of a client, for the partition dirichlet. 0 chooses the number", low=0
    )
    equal_slices: bool = setting(
        PartitionOptions.equal_slices,
        "re-cut a dirichlet split into equal slices, as the published FedPVR code does",
    )
    test_fraction: float = setting(
        0.2, "share of a client's samples for testing", low=0, high=1, open_high=True
    )
    calibration_fraction: float = setting(
        0.0, "share of a client's samples for calibration", low=0, high=1, open_high=True
    )
    min_test: int = setting(
        MIN_TEST, "fewest test samples of a client, at most half of its samples", low=0
    )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The federation's class list, empty if the data set defines the classes."""
        return tuple(map(str.strip, self.classes.split(","))) if self.classes else ()


@dataclass(frozen=True)
class TrainConfig(Settings):
    """Local training."""

    epochs: int = setting(1, "passes over a client's training data per round", low=1)
    batch_size: int = setting(32, "samples per step", low=1)
    lr: float = setting(0.1, "local learning rate of round 1", low=0, open_low=True)
    lr_decay: float = setting(
        0.999, "factor of the local learning rate per round", low=0, high=1, open_low=True
    )
    momentum: float = setting(0.0, "heavy-ball momentum", low=0, high=1, open_high=True)
    weight_decay: float = setting(0.0, "L2 penalty", low=0)
    augment: bool = setting(
        False, "augment with random crops, and with flips where the data set allows them"
    )
    drop_last: bool = setting(False, "leave out the last, incomplete batch of an epoch")
    device: str = setting("auto", "device of the clients", choices=("auto", "cpu", "cuda"))
    threads: int = setting(1, "torch threads of a client", low=1, high=256)
    precision: str = setting(
        "float32",
        "of convolutions and matrix products in training. Weights stay float32",
        choices=("float32", "bfloat16"),
    )
    cuda_graph: bool = setting(
        False, "run a training step on a GPU as one CUDA graph. No effect on a CPU"
    )


@dataclass(frozen=True)
class ServerConfig(Settings):
    """The rounds on the server."""

    lr: float = setting(1.0, "server learning rate: w <- w - lr * direction", low=0, open_low=True)
    quorum: int = setting(0, "clients that must be ready for a round. 0: all of `clients`", low=0)
    over_selection: int = setting(
        0, "clients sampled in addition to the cohort. The round uses the first replies", low=0
    )
    min_replies: int = setting(1, "fewest usable replies. A round with fewer is void", low=1)
    max_void_rounds: int = setting(3, "void rounds in a row after which the run stops", low=1)
    max_update_ratio: float = setting(
        100.0,
        "largest length of a client's update, in median lengths of the cohort; 0: no limit",
        low=0,
    )
    max_update_norm: float = setting(
        0.0, "largest length of a client's update, in units of the weights; 0: no limit", low=0
    )
    retries: int = setting(
        2, "times that a round sends its order again to a client that died or went offline", low=0
    )
    patience: float = setting(
        60.0, "seconds that a round waits for a client that went offline", low=0
    )
    start_timeout: float = setting(120.0, "seconds to wait for the quorum before a round", low=0)
    round_timeout: float = setting(
        3600.0, "seconds to wait for a round's replies", low=0, open_low=True
    )
    checkpoint_every: int = setting(5, "rounds between checkpoints. 0: no checkpoints", low=0)
    keep_checkpoints: int = setting(2, "number of checkpoints to keep", low=1)
    on_disk: bool = setting(
        False, "keep the method's vectors of clients in files instead of in memory"
    )
    group_access: bool = setting(False, "let the group of the server's user read the run directory")


@dataclass(frozen=True)
class DiagnosticsConfig(Settings):
    """Optional diagnostics of the rounds. They change no result."""

    every: int = setting(0, "rounds between diagnostics of the clients' updates. 0: none", low=0)
    probe: int = setting(
        256, "test samples for comparing the layers of the clients (CKA). 0: none", low=0
    )
    gradients: bool = setting(
        False, "ask clients for two full gradients, for the terms of FedPCD's theorem"
    )


@dataclass(frozen=True)
class ConformalConfig(Settings):
    """Conformal prediction sets of the final model. They need calibration samples."""

    miscoverage: float = setting(
        0.1,
        "tolerated share of samples whose set lacks the true class",
        low=0,
        high=1,
        open_low=True,
        open_high=True,
    )
    temperature: float = setting(1.0, "divides the logits", low=0, open_low=True)
    randomised: bool = setting(
        True, "randomise the scores of APS and RAPS, which makes sets smaller"
    )
    k_reg: int = setting(1, "RAPS: number of classes of a set without a penalty", low=1)
    lam: float = setting(0.1, "RAPS: penalty of each further class", low=0, high=100)
    bins: int = setting(
        2000, "bins of the histogram with which a client reports its scores", low=10, high=100_000
    )
