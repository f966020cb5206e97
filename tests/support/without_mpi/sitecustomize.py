"""On PYTHONPATH, this makes a Python that has mpi4py one that has not."""

import sys

sys.modules["mpi4py"] = None  # type: ignore[assignment]
