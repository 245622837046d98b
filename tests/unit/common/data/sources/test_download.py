"""Many processes download once; a missing network is reported; a damaged file never stays.

Clients raced for one file in https://github.com/NVIDIA/NVFlare/issues/1080.
"""

import hashlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from common.data.sources import download
from common.data.sources.download import RemoteFile, fetch, md5_of
from common.errors import DataError

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


@contextmanager
def server(content: bytes, *, announced: int | None = None) -> Iterator[tuple[str, list[str]]]:
    """Serve `content` slowly on the loopback; yields the base URL and the list of requests."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            time.sleep(0.2)
            self.send_response(404 if self.path.endswith("absent") else 200)
            self.send_header("Content-Length", str(announced or len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}", asked
        http.shutdown()
        thread.join()


def test_ten_processes_at_once_download_once_and_all_find_the_file(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from common.data.sources.download import RemoteFile, fetch, md5_of\n"
        "url, md5, home = sys.argv[1:]\n"
        "sys.stdin.readline()\n"
        "fetch([RemoteFile('a.bin', url + '/a.bin', md5)], Path(home))\n"
        "assert md5_of(Path(home, 'a.bin')) == md5\n"
    )
    with server(CONTENT) as (url, asked):
        command = [sys.executable, "-c", script, url, MD5, str(tmp_path / "new" / "data")]
        children = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(10)]
        for child in children:  # all have started: let them go together
            assert child.stdin
            child.stdin.write(b"go\n")
            child.stdin.flush()
        codes = [child.wait(timeout=60) for child in children]
        for child in children:
            assert child.stdin
            child.stdin.close()
    assert codes == [0] * 10
    assert asked == ["/a.bin"]
    names = {path.name for path in (tmp_path / "new" / "data").iterdir()}
    assert names == {"a.bin", ".fedkeel-download.lock"}


def test_waiting_threads_share_the_failure_instead_of_repeating_it(tmp_path: Path) -> None:
    errors: list[str] = []

    def ask(url: str) -> None:
        try:
            fetch([RemoteFile("absent", url + "/absent", MD5)], tmp_path)
        except DataError as error:
            errors.append(str(error))

    with server(b"") as (url, asked):
        threads = [threading.Thread(target=ask, args=(url,)) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(errors)) == 1
        assert len(errors) == 5
        assert len(asked) == 1
        ask(url)  # asked anew, it is tried anew
        assert len(asked) == 2


def test_what_is_there_is_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(CONTENT)
    with server(CONTENT) as (url, asked):
        files = [RemoteFile(name, f"{url}/{name}", MD5) for name in ("a.bin", "b.bin")]
        fetch(files, tmp_path)
        assert asked == ["/b.bin"]
    assert md5_of(tmp_path / "b.bin") == MD5


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"?"])
def test_a_damaged_download_is_refused_by_its_sum_and_leaves_nothing(
    tmp_path: Path, content: bytes
) -> None:
    with (
        server(content, announced=len(CONTENT)) as (url, _),
        pytest.raises(DataError, match=rf"(?s)a\.bin.*expected {MD5}"),
    ):
        fetch([RemoteFile("a.bin", f"{url}/a.bin", MD5)], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".fedkeel-download.lock"]


def test_without_a_network_it_says_what_to_put_where(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/a.bin"
        with pytest.raises(DataError) as caught:
            fetch([RemoteFile("a.bin", url, MD5)], tmp_path)
    assert f"put a.bin (from {url}) into {tmp_path}" in str(caught.value)


def test_a_network_that_never_answers_is_given_up_in_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a.bin"
        with pytest.raises(DataError, match="cannot download"):
            fetch([RemoteFile("a.bin", url, MD5)], tmp_path, seconds=0.2)


def test_a_name_server_that_never_answers_is_given_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def hang(*args: object, **kwargs: object) -> None:
        release.wait(30)
        raise OSError("released")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    started = time.monotonic()
    with pytest.raises(DataError, match=r"no answer in 0\.2 s"):
        fetch([RemoteFile("a.bin", "https://data.invalid/a.bin", MD5)], tmp_path, seconds=0.1)
    assert time.monotonic() - started < 10
    release.set()


def test_a_folder_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="cannot write"):
        fetch([RemoteFile("a.bin", "http://127.0.0.1:9/a.bin", MD5)], tmp_path / "file" / "data")


def test_a_file_above_the_size_limit_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MAX_BYTES", len(CONTENT) - 1)
    with (
        server(CONTENT) as (url, _),
        pytest.raises(DataError, match=r"cannot download .*a\.bin \(more than 1 MB\)"),
    ):
        fetch([RemoteFile("a.bin", f"{url}/a.bin", MD5)], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".fedkeel-download.lock"]
