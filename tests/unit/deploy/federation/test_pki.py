"""Promises of the federation's authority and certificates."""

import os
import shutil
import socket
import ssl
import stat
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from common.errors import DeployError
from deploy.federation.certificates import host_name, is_key_of, load_certificate, load_key
from deploy.federation.pki import ALWAYS, certificate_info, init, renew
from deploy.federation.pki_files import FOLDERS

NOW = datetime(2030, 1, 1, tzinfo=UTC)
PRIVATE = ("authority/ca.key", "server/server.key", "link/superexec.secret")
PUBLIC = ("authority/ca.crt", "public/ca.crt", "server/server.crt")
IN_ORDER = (
    "authority/ca.key",
    "authority/ca.crt",
    "public/ca.crt",
    "server/server.key",
    "server/server.crt",
    "link/superexec.secret",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pki that no test changes."""
    home = tmp_path_factory.mktemp("made") / "pki"
    init(home, ["fl.example.org", "192.0.2.7"])
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    """A pki of one's own."""
    return Path(shutil.copytree(made, tmp_path / "pki"))


def contents(home: Path) -> dict[str, bytes]:
    files = (path for path in home.rglob("*") if path.is_file())
    return {path.relative_to(home).as_posix(): path.read_bytes() for path in files}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def shake_hands(home: Path, name: str, ca: Path | None = None) -> None:
    """A TLS handshake over a socket pair, as strict as OpenSSL can be."""
    trusted = ssl.create_default_context(cafile=str(ca or home / "public/ca.crt"))
    trusted.verify_flags |= ssl.VERIFY_X509_STRICT
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(home / "server/server.crt", home / "server/server.key")
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            serving.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        trusted.wrap_socket(ours, server_hostname=name).close()
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("name", [*ALWAYS, "fl.example.org", "192.0.2.7"])
def test_whoever_trusts_the_authority_trusts_the_server_under_each_of_its_names(
    made: Path, name: str
) -> None:
    shake_hands(made, name)


@pytest.mark.parametrize("name", ["example.org", "192.0.2.8"])
def test_under_another_name_nobody_trusts_it(made: Path, name: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        shake_hands(made, name)


def test_who_trusts_another_authority_does_not_trust_it(made: Path, tmp_path: Path) -> None:
    init(tmp_path, [])
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        shake_hands(made, "localhost", tmp_path / "public/ca.crt")


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o277])
def test_nobody_else_reads_what_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        init(tmp_path / "pki", [])
    finally:
        os.umask(before)
    home = tmp_path / "pki"
    assert {mode(home / name) for name in PRIVATE} == {0o600}
    assert {mode(home / name) for name in PUBLIC} == {0o644}
    assert {mode(home / name) for name in ("authority", "server", "link")} == {0o700}


def test_folders_that_were_open_are_closed(tmp_path: Path) -> None:
    """Such as those of fresh volumes."""
    for name in FOLDERS:
        (tmp_path / name).mkdir(mode=0o755)
    init(tmp_path, [])
    assert {mode(tmp_path / name) for name in ("authority", "server", "link")} == {0o700}
    assert mode(tmp_path / "public") == 0o755
    assert sorted(contents(tmp_path)) == sorted(IN_ORDER)


def test_again_with_the_same_hosts_nothing_changes_and_it_says_so(home: Path) -> None:
    before = contents(home)
    for hosts in (["fl.example.org", "192.0.2.7"], [], ["FL.example.org", "::1"]):
        [said] = init(home, hosts)
        assert said.startswith("nothing to do")
        assert "fl.example.org" in said
    assert contents(home) == before


def test_two_federations_share_no_secret(made: Path, tmp_path: Path) -> None:
    init(tmp_path, [])
    assert not set(contents(made).values()) & set(contents(tmp_path).values())
    assert len(contents(tmp_path)["link/superexec.secret"]) == 64


def test_a_host_that_the_certificate_lacks_is_refused_with_the_way_out(home: Path) -> None:
    before = contents(home)
    with pytest.raises(DeployError) as caught:
        init(home, ["fl.example.org", "other.example.org", "192.0.2.9"])
    assert f"renew --dir {home} --host other.example.org --host 192.0.2.9" in str(caught.value)
    assert contents(home) == before


@pytest.mark.parametrize("done", range(len(IN_ORDER)))
def test_what_was_interrupted_is_completed(home: Path, done: int) -> None:
    """Killed after the first `done` files, and in the middle of writing the next."""
    before = contents(home)
    for name in IN_ORDER[done:]:
        (home / name).unlink()
    following = home / IN_ORDER[done]
    (following.parent / f".{following.name}.7-ab.partial").write_bytes(b"half")
    init(home, ["fl.example.org", "192.0.2.7"])
    after = contents(home)
    assert sorted(after) == sorted(IN_ORDER)
    for name in IN_ORDER[:done]:
        assert after[name] == before[name]
    shake_hands(home, "fl.example.org")


@pytest.mark.parametrize("name", IN_ORDER)
def test_a_damaged_file_is_named_and_nothing_is_overwritten(home: Path, name: str) -> None:
    (home / name).write_bytes((home / name).read_bytes()[:20])
    before = contents(home)
    for change in (init, renew):
        if (change, name) != (renew, "link/superexec.secret"):
            with pytest.raises(DeployError, match=name):
                change(home, [])
            assert contents(home) == before


@pytest.mark.parametrize("name", [name for name in IN_ORDER if "secret" not in name])
def test_a_file_of_another_federation_is_named_and_nothing_is_overwritten(
    home: Path, name: str, tmp_path: Path
) -> None:
    init(tmp_path / "other", [])
    shutil.copy(tmp_path / "other" / name, home / name)
    before = contents(home)
    for change in (init, renew):
        with pytest.raises(DeployError) as caught:
            change(home, [])
        assert str(home / name) in str(caught.value)
        assert contents(home) == before


def test_a_pair_that_another_authority_made_is_refused(home: Path, tmp_path: Path) -> None:
    init(tmp_path / "other", [])
    shutil.copytree(tmp_path / "other/server", home / "server", dirs_exist_ok=True)
    before = contents(home)
    for ask in (init, renew, lambda home, _: certificate_info(home)):
        with pytest.raises(DeployError, match=r"server\.crt was not signed by this federation's"):
            ask(home, [])
        assert contents(home) == before


@pytest.mark.parametrize("name", IN_ORDER)
def test_links_are_not_followed(home: Path, name: str, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    (home / name).rename(moved)
    (home / name).symlink_to(moved)
    with pytest.raises(DeployError, match=f"{name} is a symbolic link"):
        init(home, [])


def test_a_folder_that_is_a_link_is_refused(home: Path, tmp_path: Path) -> None:
    (home / "server").rename(tmp_path / "elsewhere")
    (home / "server").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DeployError, match="a symbolic link, expected a folder"):
        init(home, [])


def test_without_the_authority_s_key_all_is_well_until_it_has_to_sign(home: Path) -> None:
    """It may be kept elsewhere."""
    (home / "authority/ca.key").unlink()
    assert init(home, [])[0].startswith("nothing to do")
    with pytest.raises(DeployError, match=r"ca\.key is missing, which signs"):
        renew(home, [])
    shake_hands(home, "localhost")


@pytest.mark.parametrize("kept", ["public/ca.crt", "server/server.crt"])
def test_a_lost_authority_is_not_replaced_by_another(home: Path, kept: str) -> None:
    for name in IN_ORDER:
        if name != kept:
            (home / name).unlink()
    with pytest.raises(DeployError, match=rf"{kept} exists, but .*ca\.crt is missing"):
        init(home, [])


def test_renewing_keeps_the_authority_and_the_names_and_adds_hosts(home: Path) -> None:
    before = contents(home)
    said = renew(home, ["new.example.org"], days=30)
    after = contents(home)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"server/server.key", "server/server.crt"}
    assert sorted(after) == sorted(IN_ORDER)
    assert certificate_info(home).names == (
        *ALWAYS,
        "fl.example.org",
        "192.0.2.7",
        "new.example.org",
    )
    assert certificate_info(home).days_left == pytest.approx(30, abs=0.01)
    assert "restart" in said[-1]
    shake_hands(home, "new.example.org", home / "public/ca.crt")
    assert {mode(home / name) for name in PRIVATE} == {0o600}


def test_a_lost_server_key_is_what_renewing_makes_good(home: Path) -> None:
    (home / "server/server.key").unlink()
    with pytest.raises(DeployError, match=r"server\.key is missing.*renew"):
        init(home, [])
    renew(home, [])
    shake_hands(home, "fl.example.org")


class Killed(BaseException):
    """Stands for kill -9: nothing of ours handles it."""


@pytest.mark.parametrize("step", range(9))
def test_renewing_can_be_killed_at_any_step_and_the_next_command_makes_it_good(
    home: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rename and each removal is a step, of which there are eight."""
    left = step
    for name in ("rename", "replace", "unlink"):
        true = getattr(Path, name)

        def dying(self: Path, *arguments: object, true: object = true, **named: object) -> object:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return true(self, *arguments, **named)  # type: ignore[operator]

        monkeypatch.setattr(Path, name, dying)
    with suppress(Killed):
        renew(home, ["new.example.org"])
    monkeypatch.undo()
    key, crt = load_key(home / "server/server.key"), load_certificate(home / "server/server.crt")
    assert key is not None
    assert crt is not None
    whole = is_key_of(key, crt)
    moving = (home / "server/server.crt.next").exists() and not whole
    assert whole or moving  # between the two renames, and only there
    init(home, ["fl.example.org"])
    assert sorted(contents(home)) == sorted(IN_ORDER)
    shake_hands(home, "fl.example.org")


def test_a_certificate_ends_in_time_and_is_refused_after(tmp_path: Path) -> None:
    init(tmp_path, [], days=10, now=NOW)
    found = certificate_info(tmp_path, NOW + timedelta(days=4))
    assert found.days_left == 6
    assert found.expires == NOW + timedelta(days=10)
    assert found.authority_expires == NOW + timedelta(days=3650)
    late = NOW + timedelta(days=11)
    assert certificate_info(tmp_path, late).days_left < 0
    with pytest.raises(DeployError, match=r"server\.crt has expired.*renew"):
        init(tmp_path, [], now=late)
    renew(tmp_path, [], days=10, now=late)
    assert init(tmp_path, [], now=late)[0].startswith("nothing to do")


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    init(tmp_path, [], now=NOW)
    renew(tmp_path, [], days=825, now=NOW + timedelta(days=3600))
    assert certificate_info(tmp_path, NOW).expires == NOW + timedelta(days=3650)
    with pytest.raises(DeployError, match=r"authority/ca\.crt has expired"):
        renew(tmp_path, [], now=NOW + timedelta(days=3651))


@pytest.mark.parametrize("days", [0, -1, 3651])
def test_days_without_sense_are_refused(tmp_path: Path, days: int) -> None:
    with pytest.raises(DeployError, match="1 to 3650 days"):
        init(tmp_path, [], days)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("FL.Example.org", "fl.example.org"),
        ("superlink", "superlink"),
        ("host_1", "host_1"),
        ("example.org.", "example.org"),
        (" 10.0.0.7 ", "10.0.0.7"),
        ("[2001:DB8::1]", "2001:db8::1"),
        ("::ffff:1", "::ffff:1"),
    ],
)
def test_host_names_and_addresses_are_taken(text: str, name: str) -> None:
    assert host_name(text) == name


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "a..b", "-a", "a-", "a b", "a:8443", "https://a", "a/b", "*.example.org"),
        *("10.0.0", "10.0.0.300", "1234", "0.0.0.0", "::", "fe80::1%eth0", "bücher.example"),
        *("x" * 64, ".".join(["x" * 60] * 5), "a,b", "a\nb"),
    ],
)
def test_what_is_no_host_is_refused_before_anything_is_made(text: str, tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="not a host name or an IP address"):
        init(tmp_path, [text])
    assert contents(tmp_path) == {}


def test_renewing_needs_something_to_renew(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="make it first: fedkeel pki init"):
        renew(tmp_path, [])
    with pytest.raises(DeployError, match="make it: fedkeel pki init"):
        certificate_info(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_files_made_by_root_belong_to_whom_their_folder_belongs_to(tmp_path: Path) -> None:
    for name in FOLDERS:
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, 4242, 4242)
    init(tmp_path, [])
    assert {path.stat().st_uid for path in tmp_path.rglob("*")} == {4242}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_closed_folder_is_named_with_its_owner_and_who_asks(tmp_path: Path) -> None:
    home = tmp_path / "pki"
    (home / "authority").mkdir(parents=True)
    for folder in [home, *list(tmp_path.parents)[:3], tmp_path]:
        folder.chmod(0o755)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # in a process of its own, for the way back is closed
        os.setgroups([])
        os.setgid(4242)
        os.setuid(4242)
        try:
            init(home, [])
        except DeployError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    said = os.read(reader, 4096).decode()
    os.close(reader)
    assert f"uid 4242 may not read, write and enter the folder {home}/authority" in said
    assert "which belongs to uid 0" in said
