"""The files of a federation's pki folder, and the lock that one process at a time holds."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from common.io.files import remove_partial_files, sync_to_disk
from deploy.federation.certificates import is_key_of, load_certificate, load_key
from deploy.system.private_files import folder_lock, make_folder

FOLDERS = {"authority": 0o700, "server": 0o700, "link": 0o700, "public": 0o755}


class PkiFiles:
    """The paths of the files in a federation's pki folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ca_key = home / "authority/ca.key"
        self.ca_crt = home / "authority/ca.crt"
        self.public_crt = home / "public/ca.crt"
        self.key = home / "server/server.key"
        self.crt = home / "server/server.crt"
        self.next_key = home / "server/server.key.next"
        self.next_crt = home / "server/server.crt.next"
        self.secret = home / "link/superexec.secret"


@contextmanager
def open_pki(home: Path) -> Iterator[tuple[PkiFiles, list[str]]]:
    """Lock the four folders, finish an interrupted renewal, and yield the paths and messages."""
    files = PkiFiles(home)
    for name, mode in FOLDERS.items():
        make_folder(home / name, mode, close=True)
    with ExitStack() as stack:
        for name in FOLDERS:  # each may be a volume of its own
            stack.enter_context(folder_lock(home / name))
            remove_partial_files(home / name)
        was_interrupted = move_in(files)
        yield files, [f"finished the interrupted renewal of {files.crt}"] if was_interrupted else []


def move_in(files: PkiFiles) -> bool:
    """Replace the server's key and certificate by the next pair. Return False if there is none.

    A renewal that was interrupted before the key moved is discarded. The old pair is then intact.
    """
    crt, key = load_certificate(files.next_crt), load_key(files.next_key)
    if crt is not None and key is not None and is_key_of(key, crt):
        files.next_key.replace(files.key)
    if crt is not None and (key := load_key(files.key)) is not None and is_key_of(key, crt):
        files.next_crt.replace(files.crt)
        sync_to_disk(files.crt.parent)
        return True
    files.next_crt.unlink(missing_ok=True)
    files.next_key.unlink(missing_ok=True)
    return False
