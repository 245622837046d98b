"""The Flower ServerApp: waits for clients, runs or resumes the rounds and saves the results."""

import logging
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from common.config import RunConfig, parse
from common.data.sources import OWN
from common.errors import AggregationError, ConfigError
from common.io.files import private_files
from common.io.text import log_single_lines
from common.models import FlatModel, build, count_numbers
from common.runs.conformal_results import write_conformal
from common.runs.json_file import RecordError
from common.runs.live_state import LiveState
from common.runs.memory_note import write_memory_note
from common.runs.records import read_records
from common.wire.arrays import FlatCodec
from common.wire.client_card import ClientCard, DataKind
from server_app.diagnostics.diagnosis import Diagnosis
from server_app.memory_estimate import MemoryEstimate
from server_app.round.calibration import Query, calibrate_model
from server_app.round.client_registry import ClientRegistry
from server_app.round.ready_clients import POLL_SECONDS, ReadyClients, wait_for_clients
from server_app.run_dir.class_counter import refuse_changed_data, saving_class_counts
from server_app.run_dir.memory_mapped import raise_open_file_limit
from server_app.run_dir.run_dir import LOG, RunDir, logging_to
from server_app.state.options import Options
from server_app.state.server_state import ServerState
from server_app.strategy import MethodStrategy

logger = logging.getLogger("flwr")
app = ServerApp()
MOST_MEGABYTES = 250  # 600 MB worked on an idle machine and failed on a busy one
GREETING_SECONDS = 30.0  # for cards of nodes that are connected when the quorum is reached


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federation from the run config."""
    log_single_lines(logger)
    config = parse(context.run_config)
    with private_files(group=config.server.group_access):
        run_dir = RunDir.open(config)
        with run_dir.serving(), logging_to(run_dir.path / LOG):
            _serve(grid, config, run_dir)


def run(grid: Grid, config: RunConfig) -> ServerState[object]:
    """Run to the last round and write all results to the run directory.

    Raises:
        FedError: the error that stopped the run, which outcome.json also states.
    """
    log_single_lines(logger)
    with private_files(group=config.server.group_access):
        run_dir = RunDir.open(config)
        with run_dir.serving():
            return _serve(grid, config, run_dir)


def _serve(grid: Grid, config: RunConfig, run_dir: RunDir) -> ServerState[object]:
    begin = time.monotonic()
    timeout = config.server.round_timeout
    strategy: MethodStrategy | None = None
    try:
        registry = ClientRegistry(
            config.clients, config.quorum, timeout, logger.info, demanded_kind(config)
        )
        card = meet(grid, registry, config, run_dir)
        if registry.are_enrolled:
            refuse_what_no_superlink_carries(count_numbers(config.model, card.shape, card.classes))
        model = FlatModel(build(config.model, card.shape, card.classes, seed=config.seed))
        first = FlatCodec(model.layout).pack(model.copy_weights(), model.copy_buffers())
        deals = not registry.are_enrolled and config.data.name != OWN  # here, not on the nodes
        if deals and config.resume:
            refuse_changed_data(run_dir.path, config)
        strategy = strategy_of(config, model, registry, run_dir)
        strategy.state, warnings = run_dir.restore(model.layout)
        for warning in warnings:
            logger.warning(warning)
        for record in read_records(run_dir.path):
            strategy.training.remember(record)
            begin -= sum(record.seconds.values())  # the outcome counts earlier starts as well
        with saving_class_counts(run_dir.path, config) if deals else nullcontext():
            strategy.start(grid, first, num_rounds=config.rounds, timeout=timeout)
        assert strategy.state is not None
        if strategy.state.round == 0:
            raise AggregationError("no round changed the model; see the records for the reasons")
        if config.data.calibration_fraction:
            query = partial(strategy.query, grid)
            calibrate(query, config, card.classes, strategy.state.round, run_dir)
        kept = replace(strategy.state, weights=strategy.evaluated_weights)
        run_dir.finish(kept, model.layout, time.monotonic() - begin)
    except BaseException as error:
        done = strategy.recorded_round if strategy else 0
        with suppress(RecordError):  # on a full disk: the first error is the one to raise
            run_dir.end_early(error, done, time.monotonic() - begin)
        raise
    return strategy.state


def calibrate(query: Query, config: RunConfig, classes: int, number: int, run_dir: RunDir) -> None:
    """Write prediction sets of the final model. An error is logged and does not end the run."""
    sets = calibrate_model(query, config, classes, number)
    try:
        write_conformal(run_dir.path, sets)
    except RecordError as error:
        logger.warning("there are no prediction sets: %s", error)


def refuse_what_no_superlink_carries(numbers: int) -> None:
    """Check that a SuperLink can carry a model with these numbers, before it is built.

    Raises:
        ConfigError: the model is too large. The message names the limit.
    """
    megabytes = 4 * numbers / 1e6
    if megabytes > MOST_MEGABYTES:
        raise ConfigError(
            f"the model has {megabytes:.0f} MB, and a SuperLink carries at most {MOST_MEGABYTES} "
            "MB a message: beyond, on a busy machine, its database is locked for longer than "
            "Flower waits. Take a smaller model, or smaller images (data.image-size)"
        )


def demanded_kind(config: RunConfig) -> DataKind | None:
    """Return the kind of data that the run config demands of clients with their own data."""
    data = config.data
    if data.name != OWN:
        return None  # the clients get parts of one data set
    return DataKind((data.channels, data.image_size, data.image_size), len(data.class_names))


def meet(grid: Grid, registry: ClientRegistry, config: RunConfig, run_dir: RunDir) -> ClientCard:
    """Wait until a quorum of clients has sent cards. Return the first card, which the others match.

    Raises:
        AggregationError: too few clients connected within the timeout.
        ClientError: too many clients cannot take part.
    """
    since, timeout = time.time(), config.server.start_timeout

    def look(grid: Grid) -> ReadyClients:
        ready = registry(grid)
        run_dir.show_live(
            LiveState.waiting(ready.clients, ready.refused, 0, config.rounds, since, timeout)
        )
        return ready

    ready = wait_for_clients(
        grid, look, config.quorum, timeout, logger.info, config.expected_clients
    )
    until = time.monotonic() + GREETING_SECONDS
    while (
        registry.has_open_queries and time.monotonic() < until and len(ready.nodes) < config.clients
    ):
        time.sleep(POLL_SECONDS)  # for clients that are connected but have not replied yet
        ready = look(grid)
    logger.info(
        "%d clients; client %s %s", len(ready.nodes), ready.clients[0], registry.first.device
    )
    return registry.first


def strategy_of(
    config: RunConfig, model: FlatModel, registry: ClientRegistry, run_dir: RunDir
) -> MethodStrategy:
    """Return the strategy of the run, which writes to its directory and overwrites `model`."""
    method = config.chosen
    asked = min(config.cohort_size + config.server.over_selection, config.clients)
    needs = MemoryEstimate.of(
        method, model.layout, clients=config.clients, asked=asked, on_disk=config.server.on_disk
    )
    logger.info("in addition to the program, %s needs at most %s on the server", method.name, needs)
    if config.server.on_disk:  # replaced vectors stay open until the round ends
        raise_open_file_limit(method.stored_clients(model.layout, config.clients, asked) + asked)
    write_memory_note(run_dir.path, str(needs))
    options = Options(
        fraction_train=config.participation,
        server_lr=config.server.lr,
        seed=config.seed,
        eval_every=config.eval_every,
        clients=config.clients,
        min_available_nodes=config.quorum,
        over_selection=config.server.over_selection,
        retries=config.server.retries,
        patience=config.server.patience,
        min_replies=config.server.min_replies,
        max_void_rounds=config.server.max_void_rounds,
        max_update_ratio=config.server.max_update_ratio,
        max_update_norm=config.server.max_update_norm,
        start_timeout=config.server.start_timeout,
    )
    return MethodStrategy(
        method,
        options,
        codec=FlatCodec(model.layout),
        local_lr=config.local_lr,
        registry=registry,
        expected=config.expected_clients,
        observer=run_dir,
        diagnose=Diagnosis(config, model) if config.diagnostics.every else None,
        store_state=run_dir.mapped,
    )
