"""Without Horovod, broadcast_optimizer_state does the same."""

import pytest

from tests.parallel.optimizer.test_broadcast_state import *  # noqa: F403
from tests.support.launch.launching import WITHOUT_HOROVOD

pytestmark = pytest.mark.ranks(2, env=WITHOUT_HOROVOD)
