"""One sample over several ranks: partitioned tensors, and what torch can do with them."""

# Registers the operations (tensor.OPERATIONS).
from hvd_ext.spatial import layers as layers
from hvd_ext.spatial.convert import convert
from hvd_ext.spatial.grid import GridShape, ProcessGrid
from hvd_ext.spatial.hyperslab import Source, assemble, block_shape, open_array, read, read_block
from hvd_ext.spatial.layers.filter_state import keep_state_whole
from hvd_ext.spatial.layers.gather import gather, scatter
from hvd_ext.spatial.tensor import SpatialTensor
from hvd_ext.spatial.tools.plan import Plan, plan
from hvd_ext.spatial.tools.speeds import Speeds, measure_speeds
from hvd_ext.spatial.tools.verify import Verification, verify
from hvd_ext.spatial.unsupported import UnsupportedError

__all__ = [
    "GridShape",
    "Plan",
    "ProcessGrid",
    "Source",
    "SpatialTensor",
    "Speeds",
    "UnsupportedError",
    "Verification",
    "assemble",
    "block_shape",
    "convert",
    "gather",
    "keep_state_whole",
    "measure_speeds",
    "open_array",
    "plan",
    "read",
    "read_block",
    "scatter",
    "verify",
]
