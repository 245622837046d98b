"""The examples in the documentation run as they stand there."""

import importlib.util
from pathlib import Path

from flwr.app import Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID

from deploy.engines.inline import InlineGrid

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_the_own_app_of_the_documentation_learns_with_fedpcd() -> None:
    spec = importlib.util.spec_from_file_location("own_app", EXAMPLES / "own_app.py")
    assert spec is not None
    assert spec.loader is not None
    own_app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own_app)

    context = Context(1, SUPERLINK_NODE_ID, {}, RecordDict(), {})
    grid = InlineGrid(own_app.client, 6, {}, workers=1)
    try:
        own_app.server(grid, context)
    finally:
        grid.close()
    assert context.state.metric_records["accuracy"]["accuracy"] > 0.7
