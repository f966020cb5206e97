"""On PYTHONPATH, this makes a Python that has Horovod one that has not."""

import sys

sys.modules["horovod"] = None  # type: ignore[assignment]
