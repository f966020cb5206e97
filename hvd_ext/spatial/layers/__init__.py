"""Operations of torch on partitioned tensors; importing a module registers its operations."""

from hvd_ext.spatial.layers import adaptive_pool as adaptive_pool
from hvd_ext.spatial.layers import apart as apart
from hvd_ext.spatial.layers import attributes as attributes
from hvd_ext.spatial.layers import batch_norm as batch_norm
from hvd_ext.spatial.layers import contractions as contractions
from hvd_ext.spatial.layers import conv as conv
from hvd_ext.spatial.layers import conv_transpose as conv_transpose
from hvd_ext.spatial.layers import gather as gather
from hvd_ext.spatial.layers import indexing as indexing
from hvd_ext.spatial.layers import interpolate as interpolate
from hvd_ext.spatial.layers import losses as losses
from hvd_ext.spatial.layers import norms as norms
from hvd_ext.spatial.layers import over_channels as over_channels
from hvd_ext.spatial.layers import padding as padding
from hvd_ext.spatial.layers import pointwise as pointwise
from hvd_ext.spatial.layers import pool as pool
from hvd_ext.spatial.layers import rearranging as rearranging
from hvd_ext.spatial.layers import reductions as reductions
from hvd_ext.spatial.layers import slicing as slicing
