"""CosmoFlow (Mathuriya et al., SC 2018) as scaled up by Oyama et al. (TPDS 32, 2021).

Seven convolutions, three linear layers. The wider the cube, the more of the seven are
pooled, so that 2 x 2 x 2 cells are left at any width and all widths have the same
parameters: 4,715,712 in the convolutions, 4,721,924 in the linear layers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hvd_ext.errors import UsageError

KIND = "cosmoflow"
CHANNELS = 4
PARAMETERS = 4
WIDTHS = (32, 64, 128, 256, 512)
FEATURES = (16, 32, 64, 128, 256, 256, 256)
# The fourth convolution halves the cube by its stride.
STRIDED = 4
LEFT = 2


class CosmoFlow(nn.Module):
    """(N, 4, W, W, W) -> (N, 4): cosmological parameters, scaled to -1..1."""

    def __init__(self, width: int, *, thin: int = 1) -> None:
        """Build it with Glorot-uniform weights.

        Args:
            width: W, a power of two from 32 to 512.
            thin: divides the number of features of all layers; 1 is the published net.

        Raises:
            UsageError: the width is not one of these, or `thin` does not divide 16.
        """
        super().__init__()
        if width not in WIDTHS:
            raise UsageError(f"width {width} is not one of {', '.join(map(str, WIDTHS))}")
        if thin < 1 or FEATURES[0] % thin:
            raise UsageError(f"thin {thin} does not divide {FEATURES[0]}: give 1, 2, 4, 8 or 16")
        self.width, self.thin = width, thin
        channels, length = CHANNELS, width
        # The stride halves the cube, and so does each pool, until 2 cells are left.
        pools = int(math.log2(width // LEFT)) - 1
        layers: list[nn.Module] = []
        for number, features in enumerate(FEATURES, start=1):
            stride = 2 if number == STRIDED else 1
            conv = nn.Conv3d(channels, features // thin, 3, stride=stride, padding=1, bias=False)
            layers += [conv, nn.LeakyReLU(0.01)]
            length //= stride
            if number <= pools:
                layers.append(nn.AvgPool3d(3, stride=2, padding=1))
                length //= 2
            channels = features // thin
        self.features = nn.Sequential(*layers)
        self.flatten = nn.Flatten()
        hidden, narrow = 2048 // thin, 256 // thin
        self.head = nn.Sequential(
            nn.Dropout(0.2),
            nn.Linear(channels * length**3, hidden),
            nn.LeakyReLU(0.01),
            nn.Dropout(0.2),
            nn.Linear(hidden, narrow),
            nn.LeakyReLU(0.01),
            nn.Dropout(0.2),
            nn.Linear(narrow, PARAMETERS),
        )
        self._initialise()

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return self.head(self.flatten(x))

    @torch.no_grad()
    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv3d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.bias, 0.1)
