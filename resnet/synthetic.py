"""Images a second on random data, measured as Horovod's synthetic benchmark does."""

from __future__ import annotations

import argparse
import statistics
import time
from types import ModuleType

import torch
from torch import Tensor, nn

import hvprof
from hvd_ext.cli import progress
from hvd_ext.system.files import write_json
from resnet.model import MODELS
from resnet.optimizer import distributed, lr_scale
from training import ranks
from training.loop import descend


def benchmark(args: argparse.Namespace, hvd: ModuleType, program: str) -> None:
    """Time training steps; rank 0 prints img/sec +- 1.96 sigma per rank and in total."""
    with ranks.collective_errors(hvd, program):
        device = ranks.device(args, hvd)
        torch.manual_seed(args.seed)
        layout = ranks.memory_format(args)
        torch.backends.cudnn.benchmark = True  # as Horovod's
        model = MODELS[args.model]().to(device)
        sgd = torch.optim.SGD(model.parameters(), lr=0.01 * lr_scale(args, hvd, device))
        optimizer = distributed(args, hvd, sgd, model)
        hvprof.watch_exchange(optimizer)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        replica = ranks.replica(args, hvd, model, passes=1)
    torch.manual_seed(args.seed + hvd.rank())
    side = args.image_size
    images = torch.randn(args.batch_size, 3, side, side, device=device).to(memory_format=layout)
    labels = torch.randint(1000, (args.batch_size,), device=device)

    def loss() -> Tensor:
        with ranks.autocast(args, device):
            return nn.functional.cross_entropy(replica(images), labels)

    def run(batches: int) -> float:
        """Seconds that `batches` steps take."""
        began = time.perf_counter()
        for _ in range(batches):
            descend(optimizer, loss)
            hvprof.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    run(args.num_warmup_batches)
    rates = []
    with progress("iteration", args.num_iters, shown=hvd.rank() == 0) as advance:
        for iteration in range(1, args.num_iters + 1):
            seconds = run(args.num_batches_per_iter)
            rates.append(args.batch_size * args.num_batches_per_iter / seconds)
            advance(iteration, f"{rates[-1]:.1f} img/sec per rank")
    _report(args, hvd, rates, device, program)


def _report(
    args: argparse.Namespace,
    hvd: ModuleType,
    rates: list[float],
    device: torch.device,
    program: str,
) -> None:
    everyone = hvd.allgather_object(rates)
    # Ranks step together, so iteration i of the world is the sum over its ranks.
    total = [sum(iteration) for iteration in zip(*everyone, strict=True)]
    by_rank = [rate for rates in everyone for rate in rates]
    result = {
        "model": args.model,
        "exchange": args.exchange,
        "size": hvd.size(),
        "device": device.type,
        "batch_size": args.batch_size,
        "image_size": args.image_size,
        "bf16": args.bf16,
        "channels_last": args.channels_last,
        "images_per_second_per_rank": statistics.fmean(by_rank),
        "images_per_second_per_rank_1.96_sigma": _spread(by_rank),
        "images_per_second": statistics.fmean(total),
        "images_per_second_1.96_sigma": _spread(total),
        "step_time_s": args.batch_size / statistics.median(by_rank),
    }
    with ranks.collective_errors(hvd, program):
        if hvd.rank() == 0 and args.json:
            write_json(args.json, result)
    if hvd.rank() == 0:
        name = device.type.upper()
        print(f"Img/sec per {name}: {statistics.fmean(by_rank):.1f} +- {_spread(by_rank):.1f}")
        print(
            f"Total img/sec on {hvd.size()} {name}(s): "
            f"{statistics.fmean(total):.1f} +- {_spread(total):.1f}"
        )


def _spread(values: list[float]) -> float:
    return 1.96 * statistics.pstdev(values)
