"""The hazards of test_hazards.py and test_gradient_hazards.py where every rank is a node."""

from __future__ import annotations

import pytest

from tests.parallel.optimizer.test_gradient_hazards import *  # noqa: F403
from tests.parallel.optimizer.test_hazards import *  # noqa: F403

pytestmark = [
    pytest.mark.ranks(2, env={"HVD_EXT_TEST_RANKS_PER_NODE": "1"}),
    pytest.mark.usefixtures("nodes_by_variable", "hvd"),
]
