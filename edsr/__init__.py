"""EDSR, the enhanced deep residual network for single-image super-resolution (Lim et al., 2017)."""
