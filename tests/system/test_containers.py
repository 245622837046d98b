"""The federation of docker-compose.yml, started as its first lines say.

They run on request; -s shows how long each part takes:

    pytest -s -m containers

See tests/system/docker.py for the engine, the base image and Compose.
"""

import json
import shutil
import socket
import ssl
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.system.docker import Clock, Docker, base_image, call, context, docker
from tests.system.federation import free_port, wait_for

REPOSITORY = Path(__file__).parents[2]
CLASSES = ("cat", "dog", "zebra")
CLIENTS = ("client-1", "client-2", "client-3")
SERVERS = ("superlink", "server", "proxy")
PROJECT = "fedkeel-test"
FEDERATION = """
clients = 3
participation = 1.0
rounds = 2
eval-every = 1
[data]
name = "own"
classes = "cat,dog,zebra"
image-size = 16
"""

pytestmark = pytest.mark.containers


@dataclass
class Stack:
    """A federation in containers."""

    engine: Docker
    command: tuple[str, ...]
    folder: Path
    env: dict[str, str]
    clock: Clock

    def compose(self, *arguments: str, given: str = "") -> str:
        """Run Compose in the copy of the repository, as the operator would."""
        return call((*self.command, *arguments), self.env, cwd=self.folder, given=given)

    def inside(self, service: str, *command: str, given: str = "") -> str:
        """Run a command in a service's container."""
        return self.compose("exec", "-T", service, *command, given=given)

    def id(self, service: str) -> str:
        """The id of the service's container."""
        return self.compose("ps", "-q", service).strip()

    def facts(self, service: str) -> Any:
        """Return the engine's description of the service's container."""
        return json.loads(self.engine.run("inspect", self.id(service)))[0]

    def health(self, service: str) -> str:
        """Return the last result of the container's health check."""
        return str(self.facts(service)["State"]["Health"]["Status"])

    def wait_healthy(self, *services: str, seconds: float = 120.0) -> None:
        """Wait until all of these services are healthy."""
        for service in services:
            wait_for(
                lambda one=service: self.health(one) == "healthy",  # type: ignore[misc]
                lambda: self.compose("ps") + self.compose("logs", "--tail=40"),
                seconds,
            )

    def clients(self) -> dict[str, str]:
        """The status of each enrolled client."""
        rows = json.loads(self.inside("server", "fedkeel", "clients", "--json"))
        return {row["name"]: row["status"] for row in rows}

    def enroll(self, client: str) -> None:
        """The two commands of the documentation."""
        public = self.inside(client, "fedkeel", "key", client, "--dir", "/keys")
        self.inside("server", "fedkeel", "enroll", client, "--key", "-", given=public)

    def train(self, method: str) -> dict[str, Any]:
        """Train on the clients' own pictures by the documented commands; return the outcome."""
        self.inside("server", "sh", "-c", "cat > federation.toml", given=FEDERATION)
        options = ("--engine", "superlink", "--config", "federation.toml", "--name", method)
        self.inside("server", "fedkeel", "run", method, *options)
        output = self.inside("server", "cat", f"runs/{method}/outcome.json")
        outcome: dict[str, Any] = json.loads(output)
        return outcome


def pictures(folder: Path, seed: int) -> Path:
    """Write a client's own pictures, in which a class is a colour."""
    generator = np.random.default_rng(seed)
    for number, name in enumerate(CLASSES):
        place = folder / name
        place.mkdir(parents=True)
        for k in range(8):
            pixels = generator.integers(0, 90, (24, 24, 3), dtype=np.uint8)
            pixels[:, :, number] += 150
            Image.fromarray(pixels).save(place / f"{k}.png")
    return folder


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    folder = tmp_path_factory.mktemp("docker")
    with docker(folder) as made:
        assert made.composes, "neither docker compose nor docker-compose is here"
        yield made


@pytest.fixture(scope="module")
def stack(engine: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Build the images, make the keys, start all containers and enroll all clients."""
    folder, clock = tmp_path_factory.mktemp("stack"), Clock()
    env = {
        **{key: value for key, value in engine.env.items() if not key.startswith("FEDKEEL_")},
        "COMPOSE_PROJECT_NAME": PROJECT,
        "FEDKEEL_BASE_IMAGE": base_image(engine, folder),
        "FEDKEEL_IMAGE": "fedkeel-test:app",
        "FEDKEEL_PROXY_IMAGE": "fedkeel-test:proxy",
        "FEDKEEL_PORT": str(free_port()),
        "FEDKEEL_HOSTS": "fl.example.org 192.0.2.7",
    }
    clock.lap("base image")
    for number, client in enumerate(CLIENTS, start=1):
        env[f"FEDKEEL_CLIENT_{number}_DATA"] = str(pictures(folder / client, number))
    made = Stack(engine, engine.composes[0], context(REPOSITORY, folder), env, clock)
    made.compose("--profile", "setup", "down", "-v", "--remove-orphans")
    try:
        made.compose("build")
        clock.lap("docker compose build")
        made.compose("run", "--rm", "pki")
        clock.lap("docker compose run --rm pki")
        made.compose("up", "-d")
        clock.lap("docker compose up -d")
        made.wait_healthy(*SERVERS)
        clock.lap("server healthy")
        for client in CLIENTS:
            made.enroll(client)
        clock.lap("three clients enrolled")
        made.wait_healthy(*CLIENTS)
        clock.lap("clients healthy")
        yield made
    finally:
        failed = made.compose("logs", "--no-color", "--tail=200")
        (folder / "logs.txt").write_text(failed, encoding="utf-8")
        made.compose("--profile", "setup", "down", "-v", "--remove-orphans")
        shutil.rmtree(made.folder)  # with the torch wheel in it
        clock.lap("docker compose down")
        sizes = engine.run("images", "--format", "{{.Size}} {{.Repository}}:{{.Tag}}")
        sys.stderr.write(f"\n{clock}\n{sizes}logs: {folder / 'logs.txt'}\n")


@pytest.mark.parametrize("files", [(), ("docker-compose.yml", "deploy/compose.gpu.yml")])
def test_both_generations_of_compose_read_the_files(engine: Docker, files: Sequence[str]) -> None:
    chosen = [part for file in files for part in ("-f", file)]
    for compose in engine.composes:
        output = call((*compose, *chosen, "config"), engine.env, cwd=REPOSITORY)
        services = yaml.safe_load(output)["services"]
        assert {name for name in services if name != "pki"} == {*SERVERS, *CLIENTS}
        with_gpu = {name for name in services if "'gpu'" in str(services[name].get("deploy"))}
        assert with_gpu == (set(CLIENTS) if files else set())
        built = {name: str(services[name].get("build")) for name in services}
        assert {name for name in built if "cuda" in built[name]} == (
            {"client-1"} if files else set()
        )


@pytest.mark.parametrize("service", [*SERVERS, *CLIENTS])
def test_a_container_runs_without_privileges(stack: Stack, service: str) -> None:
    facts = stack.facts(service)
    given = facts["HostConfig"]
    assert facts["State"]["Status"] == "running"
    assert given["ReadonlyRootfs"]
    assert given["CapDrop"] == ["ALL"]
    assert given["SecurityOpt"] == ["no-new-privileges:true"]
    assert given["RestartPolicy"]["Name"] == "unless-stopped"
    assert given["Memory"] > 0
    assert given["NanoCpus"] > 0
    assert not given["Privileged"]
    lines = stack.engine.run("top", facts["Id"], "-eo", "pid,uid,args").splitlines()[1:]
    assert lines
    assert {line.split()[1] for line in lines} == {"49999"}, lines


MOUNTS = {
    "superlink": {
        "/pki/server": False,
        "/pki/link": False,
        "/pki/public": False,
        "/state": True,
    },
    "server": {"/pki/link": False, "/pki/public": False, "/work": True},
    "proxy": {"/pki/server": False, "/pki/public": False},
    "client-1": {"/trust": False, "/data": False, "/keys": True, "/scratch": True},
}


@pytest.mark.parametrize("service", list(MOUNTS))
def test_a_container_mounts_only_the_volumes_it_needs(stack: Stack, service: str) -> None:
    mounts = {mount["Destination"]: mount["RW"] for mount in stack.facts(service)["Mounts"]}
    assert mounts == MOUNTS[service]


def test_only_the_owner_can_read_private_files(stack: Stack) -> None:
    listed = {
        "superlink": ("/pki/server/server.key", "/pki/link/superexec.secret"),
        **{client: (f"/keys/{client}",) for client in CLIENTS},
    }
    for service, paths in listed.items():
        for path in paths:
            assert stack.inside(service, "stat", "-c", "%a %u", path).split() == ["600", "49999"]
    script = "stat -c '%a %u %n' /pki/* /pki/*/*"
    output = stack.compose("run", "--rm", "pki", "sh", "-c", script)
    modes = {line.split()[2]: line.split()[0] for line in output.splitlines()}
    assert modes["/pki/authority"] == "700"
    assert modes["/pki/authority/ca.key"] == "600"


def test_no_secret_is_in_an_image(stack: Stack) -> None:
    """Neither a file with a secret's name, nor the secrets in this federation's volumes."""
    secret = stack.inside("superlink", "cat", "/pki/link/superexec.secret").strip()
    key = stack.inside("superlink", "cat", "/pki/server/server.key").splitlines()[1]
    assert len(secret) == 64
    assert len(key) == 64
    packed = stack.folder / "image.tar"
    for name in ("FEDKEEL_IMAGE", "FEDKEEL_PROXY_IMAGE"):
        history = stack.engine.run("history", "--no-trunc", stack.env[name])
        assert secret not in history
        assert key not in history
        stack.engine.run("save", "-o", str(packed), stack.env[name])
        paths = set()
        for path, content in files_of(packed):
            paths.add(path)
            assert secret.encode() not in content, path
            assert key.encode() not in content, path
        odd = ("superexec.secret", "server.key", "ca.key", "/.env", ".git/config")
        assert not [path for path in paths if path.endswith(odd) or path.startswith("build/")]
        assert any(path.endswith(("bin/fedkeel", "sbin/nginx")) for path in paths)
        packed.unlink()


def files_of(packed: Path) -> Iterator[tuple[str, bytes]]:
    """Every file in every layer of a saved image."""
    with tarfile.open(packed) as image:
        manifest = image.extractfile("manifest.json")
        assert manifest is not None
        for name in json.load(manifest)[0]["Layers"]:
            with tarfile.open(fileobj=image.extractfile(name), mode="r:*") as layer:
                for member in layer:
                    content = layer.extractfile(member) if member.isfile() else None
                    if content is not None:
                        yield member.name, content.read()


def test_only_the_fleet_port_is_published_and_passes_only_the_fleet(stack: Stack) -> None:
    published = {
        (service, port, place["HostIp"])
        for service in (*SERVERS, *CLIENTS)
        for port, places in (stack.facts(service)["NetworkSettings"]["Ports"] or {}).items()
        for place in places or []
    }
    assert {(service, port) for service, port, _ in published} == {("proxy", "8443/tcp")}
    ca = stack.folder / "ca.crt"
    ca.write_text(stack.inside("proxy", "cat", "/pki/public/ca.crt"), encoding="utf-8")
    trusted = ssl.create_default_context(cafile=str(ca))

    def ask(line: str, name: str) -> int:
        where = ("127.0.0.1", int(stack.env["FEDKEEL_PORT"]))
        with (
            socket.create_connection(where, timeout=10) as plain,
            trusted.wrap_socket(plain, server_hostname=name) as channel,
        ):
            channel.sendall(f"{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            return int(channel.recv(64).split()[1])

    for name in ("localhost", "127.0.0.1", "proxy", "fl.example.org", "192.0.2.7"):
        assert ask("GET /health", name) == 200
    assert ask("POST /v1/fleet/pull-messages", "localhost") not in {403, 404, 502}
    for path in ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task"):
        assert ask(f"POST {path}", "localhost") == 403
    with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example\.org"):
        ask("GET /health", "other.example.org")


REACH = """
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        print(place, "open")
    except OSError as error:
        print(place, "closed")
"""


def test_a_client_reaches_the_proxy_and_no_server_behind_it(stack: Stack) -> None:
    networks = stack.facts("superlink")["NetworkSettings"]["Networks"].values()
    (address,) = [network["IPAddress"] for network in networks]
    places = ("proxy:8443", "superlink:8000", f"{address}:8000", f"{address}:8099", "server:8099")
    output = stack.inside("client-1", "python", "-c", REACH, *places).split()
    assert dict(zip(output[::2], output[1::2], strict=True)) == {
        place: "open" if place == "proxy:8443" else "closed" for place in places
    }


LOADER = """
import os, torch
from torch.utils.data import DataLoader, TensorDataset
size = os.statvfs("/dev/shm")
pictures = torch.rand(256, 3, 224, 224)
data = TensorDataset(pictures, torch.arange(256))
batches = [len(x) for x, _ in DataLoader(data, batch_size=64, num_workers=4)]
print(size.f_blocks * size.f_frsize, sum(batches))
"""


def test_data_loaders_with_workers_have_enough_shared_memory(stack: Stack) -> None:
    """Four workers, 224 x 224 pictures, batches of 64 (38 MB each).

    Too little shared memory: https://github.com/pytorch/pytorch/issues/5040.
    """
    size, seen = stack.inside("client-1", "python", "-c", LOADER).split()
    assert int(size) == 1 << 30
    assert int(seen) == 256


@pytest.mark.parametrize("method", ["fedpcd", "fedpvr"])
def test_a_run_in_containers_completes_with_all_clients(stack: Stack, method: str) -> None:
    stack.clock.lap("other tests")
    outcome = stack.train(method)
    stack.clock.lap(f"fedkeel run {method}, 2 rounds")
    assert outcome["status"] == "completed", outcome
    lines = stack.inside("server", "cat", f"runs/{method}/records.jsonl").splitlines()
    for line in map(json.loads, lines):
        assert line["cohort"] == list(CLIENTS)
        assert line["replied"] == list(CLIENTS)
        assert not line["dropped"]
    assert len(lines) == 2


def test_after_a_kill_the_superlink_restarts_and_clients_are_online_again(stack: Stack) -> None:
    stack.clock.lap("other tests")
    before = stack.facts("superlink")["State"]["StartedAt"]
    assert set(stack.clients()) == set(CLIENTS)
    with suppress(AssertionError):  # the command dies with what it kills
        stack.inside("superlink", "sh", "-c", "kill -9 -1")
    wait_for(lambda: stack.facts("superlink")["State"]["StartedAt"] != before)
    stack.wait_healthy("superlink", "proxy")

    def online() -> bool:
        with suppress(AssertionError):
            return stack.clients() == dict.fromkeys(CLIENTS, "online")
        return False

    wait_for(online, lambda: stack.compose("logs", "--tail=40"), 90)
    stack.clock.lap("SuperLink killed, back, clients online again")


def test_compose_stop_ends_every_container_before_docker_kills_it(stack: Stack) -> None:
    stack.clock.lap("other tests")
    stack.compose("stop")
    stack.clock.lap("docker compose stop")
    for service in (*SERVERS, *CLIENTS):
        container = stack.compose("ps", "-a", "-q", service).strip()
        state = json.loads(stack.engine.run("inspect", container))[0]["State"]
        assert not state["OOMKilled"]
        assert state["ExitCode"] in {0, 143}, (service, state)
