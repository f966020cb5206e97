"""Fast, legible distributed training on Horovod and MPI.

`import hvd_ext.torch as hvd` in place of `import horovod.torch as hvd` is all that a
training script needs. Importing this package starts no MPI and loads no torch.
"""

from hvd_ext.errors import HvdExtError, MismatchError, StallError, UsageError
from hvd_ext.events import CommEvent, listen
from hvd_ext.version import VERSION as __version__

__all__ = [
    "CommEvent",
    "HvdExtError",
    "MismatchError",
    "StallError",
    "UsageError",
    "__version__",
    "listen",
]
