"""Find what a session of tests leaves on the machine.

before = state_of_machine()
...
left = state_of_machine() - before        # links, namespaces, firewall rules, things of Docker
processes = started_processes()           # they carry a mark in their environment
"""

import os
import re
import shutil
import subprocess
import time
from contextlib import suppress

import psutil

from deploy.system.processes import is_alive

SESSION = "TESTS_SESSION"  # in the environment of every process that tests start: pytest's pid
OF_OTHERS = re.compile(rf"fkt?(?!{os.getpid()}\D)\d+\D")  # links and namespaces of other sessions
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")  # end with pytest
SBIN = "/usr/sbin:/sbin"
DOCKER = {
    "container": ("ps", "--all", "--format", "{{.Names}} {{.Image}}"),
    "network": ("network", "ls", "--format", "{{.Name}}"),
    "volume": ("volume", "ls", "--format", "{{.Name}}"),
    "image": ("images", "--format", "{{.Repository}}:{{.Tag}}"),
}


def state_of_machine() -> set[str]:
    """Return a line for each network link, namespace, firewall rule, and thing of Docker."""
    links = {f"link {line.split()[0].partition('@')[0]}" for line in _lines("ip", "-br", "link")}
    spaces = {f"network namespace {line.split()[0]}" for line in _lines("ip", "netns", "list")}
    things = {
        f"{kind} {line}" for kind, command in DOCKER.items() for line in _lines("docker", *command)
    }
    found = links | spaces | things | {f"firewall rule {rule}" for rule in firewall_rules()}
    return {line for line in found if not OF_OTHERS.search(f"{line} ")}


def firewall_rules() -> list[str]:
    """Return the rules of iptables, and its chains except for those built in and accepting."""
    lines = [re.sub(r" ?\[\d+:\d+\]", "", line) for line in _lines("iptables-save")]
    accepting = re.compile(r":\w+ ACCEPT")
    return [line for line in lines if line[0] in ":-" and not accepting.fullmatch(line)]


def started_processes() -> list[psutil.Process]:
    """Return the living processes that this session of tests has started."""
    found = {*psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(SESSION) == str(os.getpid()) and process.pid != os.getpid():
                found.add(process)
    return [one for one in found if is_alive(one) and not _is_helper(one)]


def end_processes(seconds: float = 10.0) -> list[str]:
    """Wait for the processes that tests have started, kill the rest, and return its commands."""
    deadline = time.monotonic() + seconds
    while (left := started_processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    commands = [_command(process) for process in left]
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    return commands


def _lines(*command: str) -> list[str]:
    """Return the lines that a command prints; none if it is missing or fails."""
    program = shutil.which(command[0], path=f"{os.environ.get('PATH', '')}:{SBIN}")
    if program is None:
        return []
    done = subprocess.run(
        [program, *command[1:]], capture_output=True, text=True, check=False, timeout=60
    )
    return [line for line in done.stdout.splitlines() if line] if done.returncode == 0 else []


def _is_helper(process: psutil.Process) -> bool:
    return any(name in _command(process) for name in HELPERS)


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"{process.pid} {' '.join(process.cmdline())}"
    return str(process.pid)
