"""FedPVR's block is what its name says, or the name is refused."""

import pytest

from common.errors import ConfigError
from common.layout import Layout, Tensor
from common.methods import FedPVR


@pytest.mark.parametrize(
    ("block", "said"),
    [("last:0", "whole number K"), ("last:x", "whole number K"), ("last:99", "has 2 modules")],
)
def test_a_block_that_counts_wrong_is_explained(block: str, said: str) -> None:
    layout = Layout((Tensor("a.weight", (2,)), Tensor("b.weight", (1,))))
    with pytest.raises(ConfigError, match=said):
        FedPVR(block=block).corrected_block(layout)
