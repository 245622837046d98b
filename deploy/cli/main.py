"""The `fedkeel` command."""

import io
import os
import sys
import tempfile
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import click
import typer
from rich.console import Console

from common.errors import CheckpointError, ConfigError, FedError
from deploy.cli import experiments, federation
from deploy.system.flower_env import child_env
from deploy.system.signals import interrupt, on_stop_signal

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

cli = typer.Typer(
    help="Fair, drift-free federated learning on Flower.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console(highlight=False)

experiments.add_to(cli)
federation.add_to(cli)


@cli.callback(invoke_without_command=True)
def root(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Fair, drift-free federated learning on Flower."""
    if show_version:
        console.print(version("fedkeel"))
        raise typer.Exit


def main() -> None:
    """Enter from the shell: errors of ours in one sentence, Ctrl-C and SIGTERM in order."""
    with tempfile.TemporaryDirectory(prefix="fedkeel-") as home:
        # Nothing is left in the user's home: Flower and matplotlib would both write there.
        os.environ.setdefault("FLWR_HOME", home)
        fonts = Path(tempfile.gettempdir()) / f"fedkeel-fonts-{os.getuid()}"
        os.environ.setdefault("MPLCONFIGDIR", str(fonts))
        os.environ.update(child_env())
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # rather than fail over an odd name
        errors = Console(stderr=True, highlight=False, soft_wrap=True)
        try:
            with on_stop_signal(interrupt):
                code = cli(standalone_mode=False)
        except FedError as error:
            errors.print(f"fedkeel: {error}", markup=False)
            misused = isinstance(error, ConfigError | CheckpointError)
            code = MISUSED if misused else FAILED
        except BrokenPipeError:  # whoever read the output has gone
            sys.stdout = None
            code = FAILED
        except OSError as error:
            errors.print(f"fedkeel: {error}", markup=False)
            code = FAILED
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except (KeyboardInterrupt, click.Abort):  # some versions of typer return the code instead
            code = INTERRUPTED
        if code == INTERRUPTED:
            errors.print("fedkeel: stopped; nothing is left running", markup=False)
    if any(not t.daemon for t in threading.enumerate() if t is not threading.main_thread()):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)  # a client that still trains in this process is not waited for
    sys.exit(code)


if __name__ == "__main__":
    main()
