"""Call a ClientApp in this process, as a Flower node would."""

import logging

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from common.flower_internals import ErrorCode

logger = logging.getLogger("flwr")


def answer(app: ClientApp, message: Message, context: Context) -> Message:
    """Return a client's reply. An exception goes into the log, and into the reply in short."""
    try:
        reply = app(message, context)
        if not isinstance(reply, Message):
            raise TypeError(f"the ClientApp returned {reply!r} instead of a Message")
        return reply
    except (Exception, SystemExit) as error:  # as Flower does: a client's failure is a reply
        logger.exception("client %s raised an error", context.node_config.get("partition-id"))
        reason = f"{type(error).__name__}: {error}"
        code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        return Message(Error(code, reason), reply_to=message)
