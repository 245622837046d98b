"""Turns an error reply into one line that says what happened."""

from collections.abc import Mapping

from flwr.app import Error

from common.errors import FedError
from common.flower_internals import ErrorCode
from common.io.text import single_line

REASONS: Mapping[int, str] = {
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "its ClientApp could not be loaded",
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "its ClientApp raised an error",
    ErrorCode.MESSAGE_UNAVAILABLE: "the message expired before it replied",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its reply expired",
    ErrorCode.NODE_UNAVAILABLE: "it went offline",
    ErrorCode.CLIENT_APP_CRASHED: "its process died",
}
DEAD_WORKER = ("ActorDiedError", "ActorUnavailableError", "WorkerCrashedError", "died unexpectedly")
LOST = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.CLIENT_APP_CRASHED)


def is_lost(error: Error) -> bool:
    """Whether the client did not reply because its process died or its node went offline."""
    return error.code in LOST or any(sign in (error.reason or "") for sign in DEAD_WORKER)


def refusal_of(error: FedError) -> str:
    """Return why a reply is refused. The sentence may quote the client: at most 300 characters."""
    return single_line(str(error))


def reason_of(error: Error) -> str:
    """Return the reason of an error reply without its traceback, at most 300 characters."""
    text = error.reason or ""
    if error.code == ErrorCode.NODE_UNAVAILABLE:
        return REASONS[error.code]
    if any(sign in text for sign in DEAD_WORKER):
        return "its worker process died (killed, or out of memory)"
    quotes = ""
    if text.startswith(("<class", "'", '"')):  # an engine's repr: "<class 'X'>:<'message'>"
        text, quotes = text.replace("\\n", "\n"), "'\">"
    lines = [line for line in (line.strip(" " + quotes) for line in text.splitlines()) if line]
    if not quotes and "Traceback" not in text:
        lines = ["; ".join(lines)]  # a message of the ClientApp: keep all of it
    last = lines[-1] if lines else ""
    reason = REASONS.get(error.code, f"error {error.code}")
    return f"{reason}: {single_line(last)}" if last else reason
