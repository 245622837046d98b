"""What a method remembers can lie in files: the same values, and no file left behind."""

import resource
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.client_vectors import ClientVectors
from common.errors import CheckpointError, ConfigError
from common.methods import METHODS
from common.methods.history import History
from server_app.run_dir import memory_mapped
from server_app.run_dir.checkpoint import load_newest, save
from server_app.run_dir.memory_mapped import SPARE, MemoryMappedVectors, raise_open_file_limit
from server_app.state.server_state import ServerState
from tests.builders import assert_same, layout_of_size


def remembering(*vectors: np.ndarray) -> ServerState[Any]:
    """A state of FedPCD that remembers these displacements."""
    seen = ClientVectors().put(3, {str(k): v for k, v in enumerate(vectors)})
    rates = {str(k): 0.1 for k in range(len(vectors))}
    history = History(seen, rates, np.eye(len(vectors)))
    return ServerState(3, np.zeros(5, np.float32), {}, history)


def drawn(count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).normal(size=(count, 5)).astype(np.float32))


def test_vectors_are_the_same_in_files_that_have_no_name(tmp_path: Path) -> None:
    state = remembering(*drawn(3))
    put = MemoryMappedVectors(tmp_path / "new")(state)
    assert_same(put, state)
    assert all(isinstance(e.vector.base, np.memmap) for e in put.method.seen.entries.values())
    assert all(type(e.vector) is np.ndarray for e in put.method.seen.entries.values())
    assert list((tmp_path / "new").iterdir()) == []


def test_what_is_in_a_file_already_is_not_written_again(tmp_path: Path) -> None:
    files = MemoryMappedVectors(tmp_path)
    once = files(remembering(*drawn(2)))
    more = ServerState(4, once.weights, {}, History(once.method.seen.put(4, {"9": drawn(1)[0]})))
    twice = files(more).method.seen
    for client in ("0", "1"):
        assert twice.get(client) is once.method.seen.get(client)
    assert isinstance(twice.get("9").base, np.memmap)


def test_a_vector_computed_from_mapped_ones_is_moved_to_a_file(tmp_path: Path) -> None:
    files = MemoryMappedVectors(tmp_path)
    first = files(remembering(*drawn(1))).method.seen.get("0")
    assert isinstance(files(remembering(first - 1)).method.seen.get("0").base, np.memmap)


def test_mapped_vectors_are_read_only(tmp_path: Path) -> None:
    vector = MemoryMappedVectors(tmp_path)(remembering(*drawn(1))).method.seen.get("0")
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 1


@pytest.mark.parametrize("method", METHODS)
def test_every_methods_first_state_can_be_moved_to_files(method: str, tmp_path: Path) -> None:
    layout = layout_of_size(5)
    state = ServerState.first(layout, np.zeros(5, np.float32), {}, METHODS[method]())
    assert_same(MemoryMappedVectors(tmp_path / "new")(state), state)
    assert not (tmp_path / "new").exists()  # nothing to put there


def test_a_checkpoint_holds_mapped_vectors_like_others(tmp_path: Path) -> None:
    put = MemoryMappedVectors(tmp_path)(remembering(*drawn(2)))
    save(tmp_path, put, fingerprint="x", keep=1)
    method = METHODS["fedpcd"]()
    back, warnings = load_newest(tmp_path, method, layout_of_size(5), fingerprint="x")
    assert not warnings
    assert_same(back, put)


def test_a_resumed_run_never_has_all_vectors_in_memory(tmp_path: Path) -> None:
    save(tmp_path, remembering(*drawn(3)), fingerprint="x", keep=1)
    files, held = MemoryMappedVectors(tmp_path / "mapped"), []

    def put(vector: np.ndarray) -> np.ndarray:
        held.append(weakref.ref(vector))
        assert sum(one() is not None for one in held) == 1  # the one that is put away now
        return files.put(vector)

    given = {"method": METHODS["fedpcd"](), "layout": layout_of_size(5), "fingerprint": "x"}
    back, warnings = load_newest(tmp_path, **given, put=put)
    assert not warnings
    assert_same(back, remembering(*drawn(3)))
    assert all(isinstance(e.vector.base, np.memmap) for e in back.method.seen.entries.values())
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="make room"):  # it is not the checkpoint's fault
        load_newest(tmp_path, **given, put=MemoryMappedVectors(tmp_path / "file").put)


def test_a_disk_that_refuses_ends_the_run_and_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"make room.*server\.on-disk"):
        MemoryMappedVectors(tmp_path / "file")(remembering(*drawn(1)))


@pytest.mark.parametrize("size", [500, 5_000])
def test_a_disk_that_is_full_at_the_last_bytes_is_noticed(size: int, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    code = f"""
import resource, signal, sys
import numpy as np
from pathlib import Path
from common.errors import CheckpointError
from server_app.run_dir.memory_mapped import MemoryMappedVectors
from tests.unit.server_app.run_dir.test_memory_mapped import remembering
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({4 * size - 100},) * 2)
try:
    MemoryMappedVectors(Path({str(tmp_path)!r}))(remembering(np.ones({size}, np.float32)))
except CheckpointError:
    sys.exit(7)
"""
    root = Path(__file__).parents[4]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 7


def test_vectors_do_not_count_as_memory_of_the_process(tmp_path: Path) -> None:
    """Measured in a process of its own, where no other test has left memory to reuse."""
    size = 20_000_000
    code = f"""
import sys
import numpy as np
from pathlib import Path
from common.client_vectors import ClientVectors
from server_app.run_dir.memory_mapped import MemoryMappedVectors
from server_app.state.server_state import ServerState

def anonymous():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) << 10

vector = np.ones({size}, np.float32)
state = MemoryMappedVectors(Path(sys.argv[1]))(
    ServerState(3, vector[:1], {{}}, ClientVectors().put(1, {{"0": vector}}))
)
before = anonymous()
del vector
state = ServerState(3, np.zeros(1, np.float32), {{}}, state.method)
print(before - anonymous(), *state.method.get("0")[:3])
"""
    root = Path(__file__).parents[4]
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    freed, *values = map(float, done.stdout.split())
    assert freed > 3.5 * size
    assert values == [1, 1, 1]


# ---------------------------------------------------------------- open files


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.fixture
def few_files() -> Iterator[None]:
    """Only some may be open, until somebody raises that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_each_vector_is_one_open_file(tmp_path: Path) -> None:
    before = open_files()
    kept = MemoryMappedVectors(tmp_path)(remembering(*drawn(30)))
    assert open_files() - before == len(kept.method.seen) == 30


@pytest.mark.usefixtures("few_files")
def test_the_limit_of_open_files_is_raised_to_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="ulimit"):
        MemoryMappedVectors(tmp_path)(remembering(*drawn(30)))
    raise_open_file_limit(30)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 30 + SPARE
    MemoryMappedVectors(tmp_path)(remembering(*drawn(30)))
    raise_open_file_limit(10)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 30 + SPARE  # it is never lowered


@pytest.mark.usefixtures("few_files")
def test_more_open_files_than_the_system_allows_are_refused() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(ConfigError, match=rf"up to {hard} vectors.* {hard} open files.*ulimit -Hn"):
        raise_open_file_limit(hard)


def test_more_mappings_than_the_system_allows_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_mapped, "MAPPINGS", tmp_path / "max_map_count")
    raise_open_file_limit(100)  # a system that has no such limit
    monkeypatch.setattr(memory_mapped, "MAPPED_NOW", tmp_path / "maps")
    memory_mapped.MAPPED_NOW.write_text(7 * "a library\n")
    memory_mapped.MAPPINGS.write_text(f"{SPARE + 106}\n")
    with pytest.raises(ConfigError, match=rf"606 mappings.*vm.max_map_count={SPARE + 107}"):
        raise_open_file_limit(100)
