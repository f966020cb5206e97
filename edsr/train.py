"""Train EDSR on a folder of images, on any number of ranks."""

from __future__ import annotations

import argparse
import statistics
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from edsr.data import SYNTHETIC_IMAGES, Patches, load_images, synthetic_image
from edsr.images import find_images
from edsr.model import (
    EDSR,
    KIND,
    PRESETS,
    Architecture,
    load_weights,
    read_architecture,
    write_architecture,
)
from hvd_ext.cli import above_zero, at_least, progress, run
from hvd_ext.errors import UsageError
from hvd_ext.files import make_folder, write_json
from hvprof import region, step, watch_exchange
from training import ranks
from training.arguments import Parser, add_exchange_arguments, add_precision_arguments
from training.checkpoint import load_checkpoint, save_checkpoint
from training.log import CsvLog

PROGRAM = "edsr.train"
_RESUMED = ("optimizer", "step", "samples", "seed", "rng")  # held by a checkpoint, besides weights
COLUMNS = ("step", "loss", "lr", "images_per_second")
EXAMPLE = "horovodrun -np 2 python -m edsr.train --data photographs/train --output runs/x2"


def parser() -> Parser:
    """The command line."""
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    source = cli.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="DIR", help="folder of images to learn from")
    source.add_argument("--synthetic", action="store_true", help="learn from procedural images")
    cli.add_argument("--output", type=Path, required=True, metavar="DIR", help="where it writes")
    cli.add_argument("--scale", type=int, default=2, help="2, 3 or 4")
    cli.add_argument("--preset", choices=PRESETS, default="baseline", help="size of the network")
    cli.add_argument("--blocks", type=at_least(1), metavar="N", help="instead of the preset's")
    cli.add_argument("--features", type=at_least(1), metavar="N", help="instead of the preset's")
    cli.add_argument("--res-scale", type=above_zero, metavar="X", help="instead of the preset's")
    cli.add_argument(
        "--patch", type=at_least(1), default=48, help="length of the low-resolution patch"
    )
    cli.add_argument("--batch-size", type=at_least(1), default=16, help="samples per rank")
    cli.add_argument("--steps", type=at_least(1), default=300_000, help="steps in all")
    cli.add_argument("--lr", type=above_zero, default=1e-4, help="Adam's learning rate")
    cli.add_argument(
        "--lr-decay-every", type=at_least(1), default=200_000, help="steps that halve it"
    )
    cli.add_argument("--seed", type=at_least(0), default=1, help="of weights and samples")
    cli.add_argument("--log-every", type=at_least(1), default=10, help="steps per log row")
    cli.add_argument(
        "--checkpoint-every", type=at_least(1), default=1000, help="steps per checkpoint"
    )
    begin = cli.add_mutually_exclusive_group()
    begin.add_argument(
        "--resume", action="store_true", help="go on from the checkpoint in --output"
    )
    begin.add_argument(
        "--load",
        type=Path,
        metavar="CHECKPOINT",
        help="start from its weights; from another scale, all but the upsampler's",
    )
    add_precision_arguments(cli)
    add_exchange_arguments(cli)
    return cli


@dataclass
class Position:
    """Where a run is: steps taken, and samples of the run used by all ranks."""

    step: int = 0
    samples: int = 0


class Trainer:
    """One rank's part of a run."""

    def __init__(self, args: argparse.Namespace, hvd: ModuleType) -> None:
        """Read all that this rank needs; nothing is exchanged or written yet.

        Raises:
            UsageError: images, checkpoint or architecture cannot be used.
        """
        self.args, self.hvd = args, hvd
        self.leads = hvd.rank() == 0
        self.device = ranks.device(args, hvd)
        self.checkpoint_path = args.output / "checkpoint.pt"
        self.position = Position()
        torch.manual_seed(args.seed)
        self.model = EDSR(_architecture(args))
        self._resumed = self._read_checkpoint() if self.leads else {}
        self.patches = self._load_patches()

    def start(self) -> None:
        """Give every rank the state of rank 0, and wrap the optimizer."""
        args, hvd = self.args, self.hvd
        self.model.to(self.device)
        optimizer = torch.optim.Adam(
            [p for p in self.model.parameters() if p.requires_grad], lr=args.lr, betas=(0.9, 0.999)
        )
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=self.model.named_parameters()
        )
        watch_exchange(self.optimizer)
        if args.resume:
            if self.leads:
                self.optimizer.load_state_dict(self._resumed["optimizer"])
            # On a fresh optimizer this would take a step with zero gradients to make
            # its state, and Adam's step count would be off by one from then on.
            hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
            self.position, rng = hvd.broadcast_object(
                (self.position, self._resumed.get("rng")), root_rank=0
            )
            torch.set_rng_state(rng)
        # After the optimizer's state, whose broadcast may move the parameters.
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self._resumed = {}

    def step(self) -> torch.Tensor:
        """Take one step; returns this rank's loss, a scalar."""
        args, hvd = self.args, self.hvd
        first = self.position.samples + hvd.rank() * args.batch_size
        with region("load", kind="io"):
            low, high = self.patches.batch(first, args.batch_size)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        self.optimizer.zero_grad()
        low = low.to(self.device, memory_format=ranks.memory_format(args))
        with region("forward"), ranks.autocast(args, self.device):
            loss = nn.functional.l1_loss(self.model(low), high.to(self.device))
        with region("backward"):
            loss.backward()
        with region("update"):
            self.optimizer.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.position.step += 1
        self.position.samples += args.batch_size * hvd.size()
        return loss.detach()

    @property
    def learning_rate(self) -> float:
        """Of the step to come."""
        return float(self.args.lr * 0.5 ** (self.position.step // self.args.lr_decay_every))

    def save(self) -> None:
        """Write the checkpoint, on rank 0. A collective."""
        with ranks.collective_errors(self.hvd, PROGRAM):
            if self.leads:
                save_checkpoint(
                    self.checkpoint_path,
                    {
                        "kind": KIND,
                        "arch": write_architecture(self.model.architecture),
                        "model": self.model.state_dict(),
                        "optimizer": self.optimizer.state_dict(),
                        "step": self.position.step,
                        "samples": self.position.samples,
                        "seed": self.args.seed,
                        "rng": torch.get_rng_state(),
                    },
                )

    def _load_patches(self) -> Patches:
        args = self.args
        least = args.patch * args.scale
        if args.synthetic:
            images = [synthetic_image(args.seed, i, 2 * least) for i in range(SYNTHETIC_IMAGES)]
        else:
            paths = find_images(args.data)
            with progress("loading", len(paths), shown=self.leads) as loaded:
                images = load_images(paths, least, loaded)
        self.contents = [zlib.crc32(image.tobytes()) for image in images]
        return Patches(images, args.scale, args.patch, args.seed)

    def _read_checkpoint(self) -> dict[str, Any]:
        """Put a checkpoint's weights into the model; returns it if it is to be resumed."""
        args = self.args
        if not args.resume and self.checkpoint_path.exists():
            raise UsageError(
                f"{self.checkpoint_path} is of an earlier run: "
                "add --resume to go on with it, or name another --output"
            )
        path = self.checkpoint_path if args.resume else args.load
        if path is None:
            return {}
        checkpoint = load_checkpoint(path, KIND, _RESUMED if args.resume else ())
        mine, found = self.model.architecture, read_architecture(checkpoint, path)
        weights = checkpoint.get("model", {})
        if args.resume:
            if found != mine or checkpoint["seed"] != args.seed:
                raise UsageError(
                    f"{path} is of EDSR {found}, seed {checkpoint['seed']}; asked for is "
                    f"{mine}, seed {args.seed}: resume with the flags that it was started with"
                )
            self.position = Position(checkpoint["step"], checkpoint["samples"])
        elif (found.blocks, found.features) != (mine.blocks, mine.features):
            raise UsageError(
                f"{path} is of EDSR {found}; asked for is {mine}: only the scale may differ"
            )
        elif found.scale != mine.scale:
            fresh = {k: v for k, v in self.model.state_dict().items() if k.startswith("tail.")}
            weights = {**weights, **fresh}
            weights = {k: v for k, v in weights.items() if k in self.model.state_dict()}
        load_weights(self.model, weights, path)
        return checkpoint if args.resume else {}


def main(arguments: Sequence[str]) -> int:
    """Train; returns the exit code."""
    args, hvd = ranks.start(parser(), arguments)
    advice = "lower --batch-size, --patch or --features"
    with ranks.collective_errors(hvd, PROGRAM), ranks.enough_memory(advice):
        trainer = Trainer(args, hvd)
    ranks.require_equal(hvd, PROGRAM, trainer.contents, f"the images in {args.data}")
    log = None
    with ranks.collective_errors(hvd, PROGRAM):
        if trainer.leads:
            make_folder(args.output)
            log = CsvLog(args.output / "log.csv", COLUMNS, resumed_at=trainer.position.step)
    trainer.start()
    with ranks.abort_on_error(hvd, PROGRAM), ranks.enough_memory(advice):
        _train(trainer, log)
    return 0


def _train(trainer: Trainer, log: CsvLog | None) -> None:
    args, hvd, position = trainer.args, trainer.hvd, trainer.position
    global_batch = args.batch_size * hvd.size()
    step_times_s: list[float] = []
    loss = float("nan")
    with progress(PROGRAM, args.steps, shown=trainer.leads) as advance:
        while position.step < args.steps:
            lr = trainer.learning_rate
            began = time.perf_counter()
            local_loss = trainer.step()
            step_times_s.append(time.perf_counter() - began)
            note = ""
            last = position.step == args.steps
            if last or position.step % args.log_every == 0:
                loss = hvd.allreduce(local_loss.cpu(), name="loss").item()
                window = step_times_s[-args.log_every :]
                images_per_second = global_batch * len(window) / sum(window)
                note = f"loss {loss:.4f}  {images_per_second:.1f} images/s"
                if log:
                    log.write(position.step, loss, lr, images_per_second)
            advance(position.step, note)
            if last or position.step % args.checkpoint_every == 0:
                with region("checkpoint", kind="io"):
                    trainer.save()
            step()
    if trainer.leads and not step_times_s:
        print(f"{PROGRAM}: nothing to do: {trainer.checkpoint_path} has all {args.steps} steps")
    elif trainer.leads:
        _summarise(trainer, step_times_s, loss)


def _summarise(trainer: Trainer, step_times_s: list[float], loss: float) -> None:
    args, size = trainer.args, trainer.hvd.size()
    # The first steps allocate memory and agree on names.
    warmup = min(10, len(step_times_s) // 5)
    step_time_s = statistics.median(step_times_s[warmup:])
    summary = {
        "exchange": args.exchange,
        "size": size,
        "arch": write_architecture(trainer.model.architecture),
        "batch_size": args.batch_size,
        "steps": trainer.position.step,
        "loss": loss,
        "step_time_s": step_time_s,
        "images_per_second": args.batch_size * size / step_time_s,
    }
    write_json(args.output / "summary.json", summary)
    print(
        f"{trainer.position.step} steps on {size} ranks: loss {loss:.4f}, "
        f"{summary['images_per_second']:.1f} images/s; wrote {trainer.checkpoint_path}"
    )


def _architecture(args: argparse.Namespace) -> Architecture:
    chosen = {
        name: value
        for name, value in vars(args).items()
        if name in PRESETS[args.preset] and value is not None
    }
    return Architecture(args.scale, **{**PRESETS[args.preset], **chosen})


if __name__ == "__main__":
    run(main, PROGRAM)
