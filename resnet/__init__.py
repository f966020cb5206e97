"""ResNet-18 and ResNet-50 v1.5 (He et al., 2016; the stride on the 3x3 convolution)."""
