"""Train EDSR on a folder of images, on any number of ranks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from edsr.data import SYNTHETIC_IMAGES, Patches, load_pairs, stack, synthetic_image
from edsr.evaluate import SHAVE, judge
from edsr.images import KERNELS, MATLAB
from edsr.metrics import least_length
from edsr.model import (
    EDSR,
    KIND,
    PRESETS,
    Architecture,
    write_architecture,
)
from edsr.pairs import Images, Pairs, folder_images, packed_images
from edsr.weights import load_weights, start_from
from hvd_ext import spatial
from hvd_ext.cli import above_zero, at_least, run
from hvd_ext.data import Order, fingerprint
from hvd_ext.errors import UsageError
from training import loop, ranks
from training.arguments import (
    Parser,
    add_check_argument,
    add_exchange_arguments,
    add_loading_arguments,
    add_log_arguments,
    add_precision_arguments,
    grid_of,
    may_change,
)
from training.by_steps import StepLoop
from training.grids import sample_groups
from training.rates import halved
from training.run import Run
from training.samples.checking import find_unusable, refuse_unusable
from training.samples.packs import is_pack, open_pack

PROGRAM = "edsr.train"
EXAMPLE = "hvd-launch run -np 2 -- python -m edsr.train --data photographs/train --output runs/x2"


def parser() -> Parser:
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    source = cli.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of images, or a packed file"
    )
    source.add_argument("--synthetic", action="store_true", help="train on synthetic images")
    cli.add_argument(
        "--low",
        type=Path,
        metavar="DIR",
        help="folder of downscaled images for --data, named 0801x2.png or 0801.png for 0801.png; "
        "without it images are downscaled",
    )
    cli.add_argument("--output", type=Path, required=True, metavar="DIR", help="output folder")
    cli.add_argument("--scale", type=int, default=2, help="upscaling factor: 2, 3 or 4")
    cli.add_argument("--preset", choices=PRESETS, default="baseline", help="network size")
    cli.add_argument(
        "--blocks", type=at_least(1), metavar="N", help="blocks (default: the preset's)"
    )
    cli.add_argument(
        "--features", type=at_least(1), metavar="N", help="features (default: the preset's)"
    )
    cli.add_argument(
        "--res-scale", type=above_zero, metavar="X", help="residual scale (default: the preset's)"
    )
    cli.add_argument(
        "--patch", type=at_least(1), default=48, help="length of the low-resolution patch"
    )
    cli.add_argument(
        "--kernel", choices=KERNELS, default=MATLAB, help="bicubic implementation for downscaling"
    )
    cli.add_argument(
        "--grid",
        type=grid_of(2),
        default=(1, 1),
        metavar="HxW",
        help="ranks along height and width that share a sample, as in 2x2, for patches that do"
        " not fit one rank",
    )
    cli.add_argument(
        "--batch-size",
        type=at_least(1),
        default=16,
        help="samples per rank, or per group of --grid",
    )
    cli.add_argument(
        "--batches-per-allreduce", type=at_least(1), default=1, help="batches per rank in each step"
    )
    cli.add_argument("--steps", type=at_least(1), default=300_000, help="number of steps")
    cli.add_argument("--lr", type=above_zero, default=1e-4, help="Adam's learning rate")
    cli.add_argument(
        "--lr-decay-every",
        type=at_least(1),
        default=200_000,
        help="halve the learning rate every N steps",
    )
    cli.add_argument("--clip", type=above_zero, metavar="NORM", help="maximum gradient norm")
    cli.add_argument(
        "--ema",
        type=_share,
        metavar="DECAY",
        help="keep an exponential average of the weights with this decay, as in 0.999, and "
        "validate it",
    )
    cli.add_argument(
        "--seed", type=at_least(0), default=1, help="random seed of weights and samples"
    )
    cli.add_argument(
        "--validate", type=Path, metavar="DIR", help="folder of images, or a packed file"
    )
    cli.add_argument(
        "--validate-low",
        type=Path,
        metavar="DIR",
        help="folder of downscaled images for --validate",
    )
    add_check_argument(cli)
    add_log_arguments(cli, checkpoint_every=1000, validate_every="1000")
    begin = cli.add_mutually_exclusive_group()
    begin.add_argument(
        "--resume",
        action="store_true",
        help="resume the run in --output; its flags must be the same",
    )
    begin.add_argument(
        "--load",
        type=Path,
        metavar="CHECKPOINT",
        help="file of initial weights: of edsr.train, EDSR-PyTorch or BasicSR; from another "
        "scale, all tensors that fit",
    )
    may_change(cli, "--data", "--low", "--validate", "--validate-low", "--output")
    may_change(cli, "--grid", "--steps", "--resume", "--load")
    add_loading_arguments(cli, workers=1)
    add_precision_arguments(cli)
    add_exchange_arguments(cli)
    return cli


class EdsrTrainer(loop.Trainer):
    """One rank's part of a run."""

    model: EDSR
    advice = "lower --batch-size, --patch or --features"
    unit, columns, higher_is_better = "images", ("lr",), True

    def __init__(self, args: argparse.Namespace, hvd: ModuleType) -> None:
        """Read all that this rank needs; nothing is exchanged or written yet.

        Raises:
            UsageError: images, checkpoint or architecture cannot be used.
        """
        self.args, self.hvd = args, hvd
        self.groups = sample_groups(args, hvd)
        self.passes = ranks.passes(args, hvd)
        group_batch = args.batch_size * self.passes
        self.run = Run(args, hvd, PROGRAM, KIND, group_batch * self.groups)
        torch.manual_seed(args.seed)
        self.model = EDSR(_architecture(args))
        self.architecture = write_architecture(self.model.architecture)
        self._resumed = self.run.resumed()
        if self._resumed:
            load_weights(self.model, self._resumed["model"], self.run.checkpoint_path)
        elif self.run.leads and args.load:
            start_from(self.model, args.load)
        for low, high in (("low", "data"), ("validate_low", "validate")):
            if getattr(args, low) and not getattr(args, high):
                names = (f"--{name.replace('_', '-')}" for name in (low, high))
                raise UsageError("{} holds the small images of {}: give both".format(*names))
        least = args.patch * args.scale
        self._pairs = Pairs(self._open_images(least), args.scale, least, args.low, args.kernel)
        if args.validate:
            least = least_length(args.scale + SHAVE)
            images = self._open(args.validate)
            self._held_out = Pairs(images, args.scale, least, args.validate_low, args.kernel)
            self.figures = ("psnr_db", "bicubic_db")
            # Each rank has images of its own, also where patches are shared.
            self._judged = deepcopy(self.model)
        self.average: AveragedModel | None = None
        if args.ema:
            self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(args.ema))
            # Taken over as they are: the average begins with the first weights.
            self.average.update_parameters(self.model)
            if self._resumed:
                self.average.module.load_state_dict(self._resumed["ema"])

    def load(self) -> None:
        """Decode the images, each on one rank of a node, and look at those to validate with.

        A collective.

        Raises:
            UsageError: the run that is resumed had other images.
            SystemExit: images cannot be used; rank 0 has named them.
        """
        args, hvd = self.args, self.hvd
        kept, self.contents = load_pairs(self._pairs, hvd, PROGRAM)
        if args.validate:
            check = self._held_out.__getitem__ if args.check_images else self._held_out.check
            unusable = find_unusable(hvd, len(self._held_out), check)
            refuse_unusable(hvd, PROGRAM, unusable, len(self._held_out))
        self.patches = Patches(kept, args.scale, args.patch)
        self.run.follow(Order(len(kept), args.seed, data=fingerprint(self.contents)))

    def start(self) -> None:
        """Give every rank the state of rank 0, and wrap the optimizer. A collective."""
        self.model.to(self.run.device)
        height, width = self.args.grid
        self.grid = spatial.ProcessGrid(height=height, width=width)
        if height * width > 1:
            spatial.convert(self.model, self.grid)
        learnt = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = self.hvd.DistributedOptimizer(
            torch.optim.Adam(learnt, lr=self.args.lr, betas=(0.9, 0.999)),
            named_parameters=self.model.named_parameters(),
            backward_passes_per_step=self.passes,
            **ranks.exchange_options(self.args, self.hvd),
        )
        self.slots = ranks.slots(self.args, self.hvd, self.model)
        self.run.share_state(self.model, self.optimizer, self._resumed)
        self._resumed = {}
        passes = self.args.batches_per_allreduce
        self.replica = ranks.replica(self.args, self.hvd, self.model, passes)
        if self.average:
            self.average.to(self.run.device)
            self.hvd.broadcast_parameters(self.average.module.state_dict(), root_rank=0)
        self.loader = self.run.loader(
            self.patches, self.grid.sample_group, self.groups, self.patches.cut, stack
        )

    def batch(self) -> tuple[Tensor, Tensor]:
        """Small and large patches; they are in memory, so that no rank can lack them."""
        device = self.run.device
        low, high = next(self.loader)
        return low.to(device, memory_format=ranks.memory_format(self.args)), high.to(device)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        if self.grid.space.size > 1:
            targets = spatial.scatter(targets, self.grid)
        with ranks.autocast(self.args, self.run.device):
            return nn.functional.l1_loss(self.replica(inputs), targets)

    def learning_rate(self) -> float:
        return halved(self.args.lr, self.run.position.step, self.args.lr_decay_every)

    def after_step(self) -> None:
        if self.average:
            self.average.update_parameters(self.model)

    def row(self) -> tuple[float, ...]:
        """The learning rate of the last step."""
        return (self.lr,)

    def validate(self) -> tuple[float, float]:
        """PSNR in dB on RGB, and bicubic's: means over the images. A collective."""
        hvd, args = self.hvd, self.args
        learnt = self.average.module if self.average else self.model
        self._judged.to(self.run.device).load_state_dict(learnt.state_dict())
        sums = torch.zeros(3, dtype=torch.float64)
        with ranks.collective_errors(hvd, PROGRAM):
            for number in range(hvd.rank(), len(self._held_out), hvd.size()):
                low, high = self._held_out[number]
                figures, _ = judge(self._judged, high, low, args.kernel)
                sums += torch.tensor([figures["edsr_rgb_db"], figures["bicubic_rgb_db"], 1])
        mine, bicubic, count = hvd.allreduce(sums, name="validation", op=hvd.Sum)
        return float(mine / count), float(bicubic / count)

    def state(self) -> dict[str, Any]:
        """The averaged weights."""
        return {"ema": self.average.module.state_dict()} if self.average else {}

    def _open_images(self, least: int) -> Images:
        args, length = self.args, 2 * least
        if args.synthetic:
            return Images(
                SYNTHETIC_IMAGES,
                lambda number: synthetic_image(args.seed, number, length),
                lambda number: (length, length),
                lambda number: Path(f"synthetic/{number}"),
            )
        return self._open(args.data)

    def _open(self, path: Path) -> Images:
        if is_pack(path):
            return packed_images(open_pack(path, self.hvd, PROGRAM, self.args))
        return folder_images(path, PROGRAM if self.run.leads else "")


def main(arguments: Sequence[str]) -> int:
    args, hvd = ranks.start(parser(), arguments)
    with ranks.collective_errors(hvd, PROGRAM), ranks.enough_memory(EdsrTrainer.advice):
        trainer = EdsrTrainer(args, hvd)
    with ranks.collective_errors(hvd, PROGRAM), ranks.enough_memory(EdsrTrainer.advice):
        trainer.load()
    ranks.require_equal(hvd, PROGRAM, trainer.contents, f"the images in {args.data}")
    StepLoop(trainer).train()
    return 0


def _share(text: str) -> float:
    """An argparse type: a number between 0 and 1."""
    value = above_zero(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1")
    return value


def _architecture(args: argparse.Namespace) -> Architecture:
    chosen = {
        name: value
        for name, value in vars(args).items()
        if name in PRESETS[args.preset] and value is not None
    }
    return Architecture(args.scale, **{**PRESETS[args.preset], **chosen})


if __name__ == "__main__":
    run(main, PROGRAM)
