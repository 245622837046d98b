"""Other simulators, run from where the user has them on the work of `bench.round`.

None of their code is here. Each module is run by the peer's own Python, and imports the peer.
"""

import sys
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{cores}")


@dataclass(frozen=True)
class Peer:
    """How a peer is run.

    Attributes:
        project: where it comes from, and the commit that this was made for.
        needs: a file that its checkout has.
        module: of `bench.peers`, run with WORK, LOG and `arguments`.
        arguments: "{cores}" in them is the number of cores.
        launcher: arguments of Python before the module.
    """

    project: str
    needs: str
    module: str
    arguments: Sequence[str] = ()
    launcher: Sequence[str] = ()


_PFL = ("apple/pfl-research c9d1f32", "pfl/algorithm/federated_averaging.py", "pfl")
_FL_BENCH = ("KarhouTam/FL-bench 06e658b", "src/server/fedavg.py", "fl_bench")

PEERS: Mapping[str, Peer] = {
    "pfl": Peer(*_PFL),
    "pfl-processes": Peer(*_PFL, launcher=TORCHRUN),
    "fl-bench": Peer(*_FL_BENCH, arguments=["serial", "1"]),
    "fl-bench-parallel": Peer(*_FL_BENCH, arguments=["parallel", "{cores}"]),
    "flgo": Peer("WwZzz/easyFL ea07f1d", "flgo/algorithm/fedavg.py", "flgo"),
}


@dataclass(frozen=True)
class Against:
    """A peer, its checkout and its Python, as `--against` says them: NAME=CHECKOUT[:PYTHON]."""

    name: str
    checkout: Path
    python: str

    @classmethod
    def read(cls, text: str) -> "Against":
        """Read the option.

        Raises:
            ArgumentTypeError: there is no such peer, or it is not there.
        """
        name, _, places = text.partition("=")
        checkout, _, python = places.partition(":")
        if name not in PEERS or not checkout:
            names = ", ".join(PEERS)
            raise ArgumentTypeError(f'"{text}" is not NAME=CHECKOUT[:PYTHON], NAME one of {names}')
        path, peer = Path(checkout).expanduser().absolute(), PEERS[name]
        if not (path / peer.needs).is_file():
            raise ArgumentTypeError(f"{path} is no checkout of {peer.project}: no {peer.needs}")
        python = str(Path(python).expanduser().absolute()) if python else sys.executable
        if not Path(python).is_file():
            raise ArgumentTypeError(f"there is no Python at {python}")
        return cls(name, path, python)

    def command(self, work: str, log: str, cores: int) -> list[str]:
        """Return the command that does the work and writes the log."""
        peer = PEERS[self.name]
        argv = [*peer.launcher, "-m", f"bench.peers.{peer.module}", work, log, *peer.arguments]
        return [self.python, *(part.replace("{cores}", str(cores)) for part in argv)]
