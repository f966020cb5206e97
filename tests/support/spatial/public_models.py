"""Models that people have, from the packages of the extra `models`; narrow where they can be."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor, nn

from hvd_ext.spatial import GridShape
from tests.support.spatial import gans

GRIDS = (GridShape(height=2), GridShape(width=3), GridShape(height=2, width=2))
PHOTO = (2, 3, 67, 75)
CUBE = (2, 1, 19, 21, 17)


@dataclass(frozen=True)
class Public:
    """One model.

    Attributes:
        package: that has it; "" for the tests themselves.
        name: as people know it.
        build: makes it, with random weights.
        shape: of the input.
        refused: what a refusal says, where it is refused.
    """

    package: str
    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = PHOTO
    refused: str = ""


def module(name: str) -> ModuleType:
    """Import a module of a package, past what keeps it from being imported here."""
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        # torchvision from PyPI beside torch for CPUs: its kernels, which none of the models
        # calls, are for CUDA's torch and cannot be loaded.
        if "torchvision::nms" not in str(error):
            raise
        for kernel in ("nms", "qnms"):
            signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{kernel}", signature)
        for loaded in [key for key in sys.modules if key.split(".")[0] in ("torchvision", "timm")]:
            del sys.modules[loaded]
        return importlib.import_module(name)


def _torchvision(name: str, **options: object) -> Public:
    def build() -> nn.Module:
        made: nn.Module = getattr(module("torchvision.models"), name)(**options)
        return made

    return Public("torchvision", name, build)


def _narrow(name: str, inside: int) -> Public:
    """Its hidden layers have 4096 features, 100 million weights that are not what is verified."""

    def build() -> nn.Module:
        made: nn.Module = getattr(module("torchvision.models"), name)()
        made.classifier = nn.Sequential(nn.Linear(inside, 8), nn.ReLU(True), nn.Dropout())
        return made

    return Public("torchvision", f"{name} with a narrow head", build)


def _segmentation(name: str, **options: object) -> Public:
    def build() -> nn.Module:
        kinds = module("torchvision.models.segmentation")
        chosen = {"weights": None, "weights_backbone": None, "num_classes": 3}
        made: nn.Module = getattr(kinds, name)(**(chosen | options))
        return made

    return Public("torchvision", name, build)


def _timm(name: str, shape: tuple[int, ...] = PHOTO, **options: object) -> Public:
    def build() -> nn.Module:
        made: nn.Module = module("timm").create_model(name, num_classes=10, **options)
        return made

    return Public("timm", name, build, shape)


def _monai(name: str, shape: tuple[int, ...] = CUBE, title: str = "", **options: object) -> Public:
    def build() -> nn.Module:
        made: nn.Module = getattr(module("monai.networks.nets"), name)(**options)
        return made

    return Public("monai", title or name, build, shape)


def _nnunet(name: str, dims: int, shape: tuple[int, ...], **options: object) -> Public:
    def build() -> nn.Module:
        made: nn.Module = getattr(module("dynamic_network_architectures.architectures.unet"), name)(
            input_channels=1,
            n_stages=3,
            features_per_stage=(4, 8, 16),
            conv_op=(nn.Conv2d, nn.Conv3d)[dims - 2],
            kernel_sizes=3,
            strides=(1, 2, 2),
            num_classes=3,
            n_conv_per_stage_decoder=(1, 1),
            conv_bias=True,
            norm_op=(nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 2],
            norm_op_kwargs={"eps": 1e-5, "affine": True},
            nonlin=nn.LeakyReLU,
            nonlin_kwargs={"inplace": True},
            deep_supervision=True,
            **options,
        )
        return made

    return Public("dynamic-network-architectures", f"{name} {dims}-D", build, shape)


class Pair(nn.Module):
    """What takes two images, given one and its like."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.model(x, x * 0.5)
        return made


def _basicsr(
    file: str,
    name: str,
    shape: tuple[int, ...] = (1, 3, 19, 23),
    refused: str = "",
    title: str = "",
    images: int = 1,
    **options: object,
) -> Public:
    def build() -> nn.Module:
        # Which its data sets ask for, and torchvision no longer has.
        sys.modules.setdefault(
            "torchvision.transforms.functional_tensor",
            module("torchvision.transforms.functional"),
        )
        made: nn.Module = getattr(module(f"basicsr.archs.{file}_arch"), name)(**options)
        return made if images == 1 else Pair(made)

    return Public("basicsr", title or name, build, shape, refused)


_SMALL_UNET = {"channels": (4, 8, 16), "strides": (2, 2)}
_ODD_CUBE = (1, 1, 12, 20, 28)

MODELS: tuple[Public, ...] = (
    _torchvision("resnet18"),
    _torchvision("mobilenet_v2"),
    _torchvision("mobilenet_v3_small"),
    _torchvision("mobilenet_v3_large"),
    _torchvision("shufflenet_v2_x0_5"),
    _torchvision("squeezenet1_0"),
    _torchvision("squeezenet1_1"),
    _torchvision("densenet121"),
    _torchvision("googlenet", aux_logits=False, init_weights=False),
    _torchvision("mnasnet0_5"),
    _torchvision("efficientnet_b0"),
    _torchvision("regnet_x_400mf"),
    _torchvision("regnet_y_400mf"),
    _narrow("alexnet", 256 * 36),
    _narrow("vgg11", 512 * 49),
    _narrow("vgg11_bn", 512 * 49),
    _segmentation("deeplabv3_mobilenet_v3_large"),
    _segmentation("lraspp_mobilenet_v3_large"),
    _segmentation("fcn_resnet50"),
    _segmentation("deeplabv3_resnet50"),
    _timm("resnet10t"),
    _timm("test_resnet"),
    _timm("ecaresnet26t"),
    _timm("resnest14d"),
    _timm("skresnet18"),
    _timm("res2net50_48w_2s"),
    _timm("convnext_atto"),
    _timm("convnextv2_atto"),
    _timm("inception_next_atto"),
    _timm("poolformerv2_s12"),
    _timm("mambaout_femto"),
    _timm("focalnet_tiny_srf"),
    _timm("regnetz_005"),
    _timm("efficientnet_lite0"),
    _timm("tf_efficientnet_b0"),
    _timm("test_efficientnet_gn"),
    _timm("tinynet_e"),
    _timm("mobilenetv4_conv_small_050"),
    _timm("ghostnet_050"),
    _timm("mixnet_s"),
    _timm("lcnet_050"),
    _timm("fbnetc_100"),
    _timm("hardcorenas_a"),
    _timm("rexnet_100"),
    _timm("dla46_c", shape=(2, 3, 96, 160)),
    _timm("hrnet_w18_small", shape=(2, 3, 96, 160)),
    _timm("cs3darknet_focus_s"),
    _timm("ese_vovnet19b_slim"),
    _timm("selecsls42"),
    _timm("repvgg_a0"),
    _timm("mobileone_s0"),
    _timm("repghostnet_050"),
    _timm("fastvit_t8"),
    _timm("starnet_s1"),
    _timm("test_nfnet"),
    _timm("test_byobnet"),
    _timm("vit_tiny_patch16_224", img_size=(80, 112), shape=(2, 3, 80, 112), depth=2),
    _timm("mobilevit_xxs"),
    _timm("edgenext_xx_small"),
    _timm("test_coatnet", img_size=(96, 96), shape=(2, 3, 96, 96)),
    _monai("BasicUNet", (1, 1, 35, 37, 33), spatial_dims=3, features=(4, 4, 8, 8, 16, 4)),
    _monai(
        "BasicUNetPlusPlus", spatial_dims=3, features=(4, 4, 8, 8, 16, 4), shape=(1, 1, 32, 48, 32)
    ),
    _monai(
        "UNet",
        (2, 1, 20, 28),
        "UNet 2-D",
        spatial_dims=2,
        in_channels=1,
        out_channels=2,
        **_SMALL_UNET,
    ),
    _monai(
        "UNet",
        _ODD_CUBE,
        "UNet 3-D",
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
        num_res_units=2,
        **_SMALL_UNET,
    ),
    _monai("VNet", (1, 1, 16, 16, 48), spatial_dims=3),
    _monai("SegResNet", (1, 1, 24, 40, 8), init_filters=8),
    _monai(
        "AttentionUnet", _ODD_CUBE, spatial_dims=3, in_channels=1, out_channels=2, **_SMALL_UNET
    ),
    _monai(
        "DynUNet",
        _ODD_CUBE,
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
        kernel_size=(3, 3, 3),
        strides=(1, 2, 2),
        upsample_kernel_size=(2, 2),
        filters=(4, 8, 16),
    ),
    _monai("HighResNet", (1, 1, 9, 11, 13), spatial_dims=3),
    _monai("resnet10", (2, 1, 33, 35, 37), spatial_dims=3, n_input_channels=1, num_classes=2),
    _monai("DenseNet121", spatial_dims=3, in_channels=1, out_channels=2, shape=(2, 1, 33, 35, 37)),
    _monai(
        "AutoEncoder",
        _ODD_CUBE,
        spatial_dims=3,
        in_channels=1,
        out_channels=1,
        channels=(4, 8),
        strides=(2, 2),
    ),
    _monai("RegUNet", _ODD_CUBE, spatial_dims=3, in_channels=1, num_channel_initial=4, depth=2),
    _nnunet("PlainConvUNet", 2, (1, 1, 20, 28), n_conv_per_stage=(1, 1, 1)),
    _nnunet("PlainConvUNet", 3, _ODD_CUBE, n_conv_per_stage=(1, 1, 1)),
    _nnunet("ResidualEncoderUNet", 3, _ODD_CUBE, n_blocks_per_stage=(1, 1, 1)),
    _nnunet("ResidualUNet", 3, _ODD_CUBE, n_blocks_per_stage=(1, 1, 1)),
    _basicsr("edsr", "EDSR", num_in_ch=3, num_out_ch=3, num_feat=8, num_block=2),
    _basicsr("srresnet", "MSRResNet", num_feat=8, num_block=2),
    _basicsr("rcan", "RCAN", num_in_ch=3, num_out_ch=3, num_feat=16, num_group=2, num_block=2),
    _basicsr("rrdbnet", "RRDBNet", num_in_ch=3, num_out_ch=3, num_feat=8, num_block=1),
    _basicsr(
        "rrdbnet",
        "RRDBNet",
        (1, 3, 18, 22),
        title="RRDBNet x2",
        num_in_ch=3,
        num_out_ch=3,
        scale=2,
        num_feat=8,
        num_block=1,
    ),
    _basicsr("srvgg", "SRVGGNetCompact", num_in_ch=3, num_out_ch=3, num_feat=8, num_conv=3),
    _basicsr("spynet", "SpyNet", (1, 3, 64, 96), "grid_sample", images=2),
    _basicsr("ridnet", "RIDNet", in_channels=3, mid_channels=16, out_channels=3, num_block=1),
    _basicsr(
        "swinir",
        "SwinIR",
        (1, 3, 20, 28),
        img_size=16,
        window_size=4,
        depths=(2,),
        embed_dim=12,
        num_heads=(2,),
        upsampler="pixelshuffle",
    ),
    _basicsr("discriminator", "UNetDiscriminatorSN", (1, 3, 40, 56), num_in_ch=3, num_feat=8),
    Public("", "DCGAN's generator", gans.dcgan_generator, (2, 3, 5, 7)),
    Public("", "DCGAN's discriminator", gans.dcgan_discriminator),
    Public("", "Pix2Pix's generator", gans.Pix2Pix, (2, 3, 40, 56)),
    Public("", "CycleGAN's generator", gans.cyclegan_generator, (2, 3, 20, 28)),
    Public("", "Pix2Pix's discriminator", gans.patch_discriminator),
)
