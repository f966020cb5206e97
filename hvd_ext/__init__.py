"""Fast, legible distributed training on Horovod and MPI.

`import hvd_ext.torch as hvd` in place of `import horovod.torch as hvd` is all that a
training script needs. Importing this package starts no MPI and loads no torch.
"""

from hvd_ext.errors import HvdExtError, MismatchError, StallError, UsageError
from hvd_ext.events import CommEvent, listen

__version__ = "0.1.0"

__all__ = [
    "CommEvent",
    "HvdExtError",
    "MismatchError",
    "StallError",
    "UsageError",
    "listen",
]
