"""One sample over several ranks: partitioned tensors, and what torch can do with them."""

# Each puts its operations on the list (tensor.HANDLERS).
from hvd_ext.spatial import adaptive as adaptive
from hvd_ext.spatial import conv as conv
from hvd_ext.spatial import losses as losses
from hvd_ext.spatial import norm as norm
from hvd_ext.spatial import pointwise as pointwise
from hvd_ext.spatial import pool as pool
from hvd_ext.spatial import resample as resample
from hvd_ext.spatial import shape as shape
from hvd_ext.spatial import transposed as transposed
from hvd_ext.spatial.convert import convert
from hvd_ext.spatial.grid import GridShape, ProcessGrid
from hvd_ext.spatial.hyperslab import Source, open_array, read
from hvd_ext.spatial.plan import Plan, Speeds, measure, plan
from hvd_ext.spatial.refusal import Refusal
from hvd_ext.spatial.replicate import gather, scatter
from hvd_ext.spatial.tensor import SpatialTensor
from hvd_ext.spatial.verify import Verification, verify

__all__ = [
    "GridShape",
    "Plan",
    "ProcessGrid",
    "Refusal",
    "Source",
    "SpatialTensor",
    "Speeds",
    "Verification",
    "convert",
    "gather",
    "measure",
    "open_array",
    "plan",
    "read",
    "scatter",
    "verify",
]
