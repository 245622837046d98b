"""An error reply becomes one line that a person can act on."""

import pytest
from flwr.app import Error
from flwr.common.constant import ErrorCode

from common.io.text import LONGEST
from server_app.round.error_reasons import reason_of

SAID = "its ClientApp raised an error"
RAISED = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
TRACEBACK = """Traceback (most recent call last):
  File "app.py", line 3, in train
    raise ValueError("no such class")
ValueError: no such class
"""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Error(RAISED, TRACEBACK), f"{SAID}: ValueError: no such class"),
        (Error(RAISED, repr(TRACEBACK)), f"{SAID}: ValueError: no such class"),
        (Error(RAISED, "one line"), f"{SAID}: one line"),
        (Error(RAISED), SAID),
        (Error(RAISED, "  \n \n"), SAID),
        (Error(ErrorCode.NODE_UNAVAILABLE), "it went offline"),
        (Error(ErrorCode.MESSAGE_UNAVAILABLE, ""), "the message expired before it replied"),
        (Error(4711, "what"), "error 4711: what"),
        (
            Error(0, "ray.exceptions.ActorDiedError: The actor died unexpectedly\nmore"),
            "its worker process died (killed, or out of memory)",
        ),
    ],
)  # fmt: skip
def test_the_last_line_of_a_traceback_is_what_counts(error: Error, reason: str) -> None:
    assert reason_of(error) == reason


def test_a_long_error_message_is_cut() -> None:
    said = reason_of(Error(RAISED, "x" * 10_000))
    assert len(said) < LONGEST + 50


def test_a_clients_own_error_message_is_kept_whole() -> None:
    error = Error(2, "the run config cannot be used:\n  rounds must be ...\n  put it into <folder>")
    assert reason_of(error) == (
        "its ClientApp raised an error: the run config cannot be used:; rounds must be ...; "
        "put it into <folder>"
    )
