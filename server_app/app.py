"""The Flower ServerApp: parse, meet the clients, build or resume, run, keep the results."""

import logging
import time
from contextlib import suppress
from dataclasses import fields

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from common.config import RunConfig, parse
from common.errors import AggregationError
from common.models import FlatModel, build
from common.wire import FlatCodec
from server_app.folder import RunFolder
from server_app.records import RecordError
from server_app.roster import Roster, ask_everybody, wait_for_nodes
from server_app.state import ServerState
from server_app.strategies import STRATEGIES
from server_app.strategy import MethodStrategy

logger = logging.getLogger("flwr")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federation from the run config."""
    run(grid, parse(context.run_config))


def run(grid: Grid, config: RunConfig) -> ServerState[object]:
    """Run to the last round and leave everything in the run's folder.

    Raises:
        FedError: whatever stopped the run; it is in the folder's outcome.json as well.
    """
    begin = time.monotonic()
    folder = RunFolder.open(config)
    strategy: MethodStrategy | None = None
    try:
        wait = config.server.start_timeout
        nodes = wait_for_nodes(grid, config.clients, wait, logger.info)
        roster, card = ask_everybody(grid, nodes, config.server.round_timeout)
        logger.info("%d clients; client %s %s", len(nodes), roster.clients[0], card.device)
        model = FlatModel(build(config.model, card.shape, card.classes, seed=config.seed))
        codec = FlatCodec(model.layout)
        strategy = strategy_of(config, codec, roster, folder)
        strategy.state, warnings = folder.restore(model.layout)
        for warning in warnings:
            logger.warning(warning)
        first = codec.pack(model.take_weights(), model.take_buffers())
        strategy.start(grid, first, num_rounds=config.rounds, timeout=config.server.round_timeout)
        assert strategy.state is not None
        if strategy.state.round == 0:
            raise AggregationError("no round changed the model; see the records for the reasons")
        folder.finish(strategy.state, model.layout, time.monotonic() - begin)
    except BaseException as error:
        done = strategy.state.round if strategy and strategy.state else 0
        with suppress(RecordError):  # on a full disk, say; what counts is the first error
            folder.end_early(error, done, time.monotonic() - begin)
        raise
    return strategy.state


def strategy_of(
    config: RunConfig, codec: FlatCodec, roster: Roster, folder: RunFolder
) -> MethodStrategy:
    """Return the run's strategy, wired to its folder."""
    method = config.chosen
    floats = method.memory(codec.layout, config.clients, config.cohort_size)
    if floats:
        logger.info("%s remembers at most %.1f MB on the server", method.name, floats * 4 / 1e6)
    return STRATEGIES[config.method](
        **{item.name: getattr(method, item.name) for item in fields(method)},
        fraction_train=config.participation,
        server_lr=config.server.lr,
        seed=config.seed,
        eval_every=config.eval_every,
        min_available_nodes=config.clients,
        min_replies=config.server.min_replies,
        max_void_rounds=config.server.max_void_rounds,
        start_timeout=config.server.start_timeout,
        codec=codec,
        local_lr=config.local_lr,
        roster=lambda _: roster,
        observer=folder,
    )
