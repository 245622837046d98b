"""What is refused before anything is trained."""

import pytest

from common.errors import ConfigError
from common.layout import Layout, Tensor
from common.models import FlatModel, build
from server_app.app import refuse_what_no_superlink_carries


def test_flb_07_a_model_that_no_superlink_carries_is_refused_with_the_limit() -> None:
    refuse_what_no_superlink_carries(FlatModel(build("vgg11", (3, 32, 32), 10, seed=0)).layout)
    huge = Layout((Tensor("classifier.weight", (150, 10**6)),))
    with pytest.raises(ConfigError, match=r"600 MB, and a SuperLink carries at most 250 MB"):
        refuse_what_no_superlink_carries(huge)
