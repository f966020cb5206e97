"""ResNet (He et al., "Deep Residual Learning for Image Recognition", 2016, table 1).

ResNet-50 is v1.5: it strides in a bottleneck's 3x3 convolution instead of its first 1x1.
Modules are named so that the state_dict has torchvision's keys.
"""

from __future__ import annotations

from torch import Tensor, nn

KIND = "resnet"


class _Basic(nn.Module):
    """(N, in, H, W) -> (N, width, H / stride, W / stride)."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.relu(self.bn1(self.conv1(x)))
        branch = self.bn2(self.conv2(branch))
        return self.relu(branch + self.downsample(x))


class _Bottleneck(nn.Module):
    """(N, in, H, W) -> (N, 4 width, H / stride, W / stride)."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = self.expansion * width
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.relu(self.bn1(self.conv1(x)))
        branch = self.relu(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        return self.relu(branch + self.downsample(x))


class ResNet(nn.Module):
    """(N, 3, H, W) -> (N, classes) logits; H and W are usually 224.

    Attributes:
        name: the name in papers.
    """

    def __init__(
        self,
        name: str,
        block: type[_Basic | _Bottleneck],
        stages: tuple[int, ...],
        classes: int,
        zero_init_residual: bool,
    ) -> None:
        super().__init__()
        self.name = name
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = 64
        for number, blocks in enumerate(stages, start=1):
            width = 64 * 2 ** (number - 1)
            stage = []
            for place in range(blocks):
                stride = 2 if place == 0 and number > 1 else 1
                stage.append(block(channels, width, stride))
                channels = block.expansion * width
            self.add_module(f"layer{number}", nn.Sequential(*stage))
        self._stages = len(stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        self._initialise(zero_init_residual)

    def forward(self, x: Tensor) -> Tensor:
        """Classify (N, 3, H, W), normalized; returns logits (N, classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, self._stages + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return self.fc(self.avgpool(x).flatten(1))

    def _initialise(self, zero_init_residual: bool) -> None:
        """As Goyal et al., 2017, section 5.1."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            # Each block then starts as the identity.
            elif isinstance(module, _Bottleneck) and zero_init_residual:
                nn.init.zeros_(module.bn3.weight)
            elif isinstance(module, _Basic) and zero_init_residual:
                nn.init.zeros_(module.bn2.weight)
        nn.init.normal_(self.fc.weight, std=0.01)
        nn.init.zeros_(self.fc.bias)


def resnet18(classes: int = 1000, *, zero_init_residual: bool = False) -> ResNet:
    """Build a ResNet-18; with 1000 classes it has 11,689,512 parameters.

    Args:
        classes: number of logits.
        zero_init_residual: start the last batch norm of each block with weight 0.
    """
    return ResNet("ResNet-18", _Basic, (2, 2, 2, 2), classes, zero_init_residual)


def resnet50(classes: int = 1000, *, zero_init_residual: bool = False) -> ResNet:
    """Build a ResNet-50 v1.5; with 1000 classes it has 25,557,032 parameters.

    Args:
        classes: number of logits.
        zero_init_residual: start the last batch norm of each block with weight 0.
    """
    return ResNet("ResNet-50", _Bottleneck, (3, 4, 6, 3), classes, zero_init_residual)


MODELS = {"resnet18": resnet18, "resnet50": resnet50}


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
        nn.BatchNorm2d(out_channels),
    )
