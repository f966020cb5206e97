"""Operations of torch on partitioned tensors; importing a module registers its operations."""

from hvd_ext.spatial.layers import contractions as contractions
from hvd_ext.spatial.layers import gather as gather
from hvd_ext.spatial.layers import pointwise as pointwise
from hvd_ext.spatial.layers.reducing import batch_norm as batch_norm
from hvd_ext.spatial.layers.reducing import losses as losses
from hvd_ext.spatial.layers.reducing import norms as norms
from hvd_ext.spatial.layers.reducing import over_channels as over_channels
from hvd_ext.spatial.layers.reducing import reductions as reductions
from hvd_ext.spatial.layers.shaping import attributes as attributes
from hvd_ext.spatial.layers.shaping import blocks as blocks
from hvd_ext.spatial.layers.shaping import indexing as indexing
from hvd_ext.spatial.layers.shaping import rearranging as rearranging
from hvd_ext.spatial.layers.shaping import slicing as slicing
from hvd_ext.spatial.layers.windows import adaptive_pool as adaptive_pool
from hvd_ext.spatial.layers.windows import conv as conv
from hvd_ext.spatial.layers.windows import conv_transpose as conv_transpose
from hvd_ext.spatial.layers.windows import interpolate as interpolate
from hvd_ext.spatial.layers.windows import padding as padding
from hvd_ext.spatial.layers.windows import pool as pool
