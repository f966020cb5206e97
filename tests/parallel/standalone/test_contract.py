"""What hvd_ext's optimizer promises, without Horovod: the tests of the optimizer's contract."""

from __future__ import annotations

import pytest

from tests.parallel.optimizer.test_contract import *  # noqa: F403
from tests.support.launch.launching import WITHOUT_HOROVOD

pytestmark = [
    pytest.mark.ranks(pytest.param(2, marks=pytest.mark.long), 3, env=WITHOUT_HOROVOD),
    pytest.mark.usefixtures("hvd"),
    pytest.mark.filterwarnings("error", "ignore:.*lr_scheduler"),
]

# Those of Horovod itself.
del test_horovods_thread_steps_aside  # noqa: F821
del test_every_public_name_is_there  # noqa: F821
del test_horovods_own_broadcast_makes_state_by_a_step_without_an_exchange  # noqa: F821
