"""`attach`: a DistributedDataParallel model's gradients through the node's memory."""

# No `from __future__ import annotations`: torch compares the hook's annotations with classes.
import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from hvd_ext import variables
from hvd_ext.allreduce.agreed import read_table
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.cuda.kernels import SERVED
from hvd_ext.c10d import lifecycle
from hvd_ext.c10d.exchange import Exchange
from hvd_ext.c10d.ranks import limit_of, topology_of
from hvd_ext.compression.formats import FORMATS, Format, parse
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import MismatchError, UsageError
from hvd_ext.tensors import dtype_name

_SERVED = {"cpu": tuple(DTYPES), "cuda": SERVED}


def attach(ddp_model: DistributedDataParallel, compression: Format | str | None = None) -> Exchange:
    """Let hvd_ext exchange a DDP model's gradients; collective over its process group.

    Within a node each rank reduces its shard of a bucket in its peers' memory. Between nodes the
    shards travel by the algorithm that the table names, or in a format of fewer bytes. Everything
    else stays with the model's process group. The model can have no other communication hook.

    Gradients on a GPU are reduced there, after a check that this machine's GPUs give the right
    sums. If they do not, or GPUs cannot share memory, DDP's process group reduces them, and rank 0
    logs the reason.

    Args:
        ddp_model: a model on the CPU or on one GPU, with dense gradients of float16, bfloat16,
            float32 or, on the CPU, float64.
        compression: how float32 travels between nodes: "none", "bf16", "fp16", "int8" or
            "powersgd:rank=4". By default HVD_EXT_COMPRESSION, or "none".

    Returns:
        The exchange; its `explain()` says how gradients are exchanged.

    Raises:
        UsageError: the model, the format or the way the ranks were started is not supported.
        MismatchError: ranks ask for different formats, or have the model on different devices.
        StallError: ranks did not reach this in time; names them.
    """
    format = _format(variables.COMPRESSION.read() if compression is None else compression)
    device = check(ddp_model)
    on_gpu = device.type == "cuda"
    topology = topology_of(ddp_model.process_group)
    limit_s, setting = limit_of(ddp_model.process_group)
    off = f"HVD_EXT_DEVICE_ARENA=0 on rank {dist.get_rank()}"
    refusal = off if on_gpu and not variables.DEVICE_ARENA.read() else ""
    mine = format.name, device.type, refusal
    asked = topology.allgather(mine, limit_s, "hvd_ext.c10d.attach()", setting)
    for rank, (name, place, _) in zip(topology.ranks, asked, strict=True):
        if name != asked[0][0]:
            raise MismatchError(
                f"compression: rank {rank} asks for {name!r}, and rank {topology.ranks[0]} for "
                f"{asked[0][0]!r}: ask for the same on every rank"
            )
        if place != asked[0][1]:
            raise MismatchError(
                f"attach(): the model of rank {rank} is on {place}, and that of rank "
                f"{topology.ranks[0]} on {asked[0][1]}: move it to the same kind of device on "
                "every rank"
            )
    exchange = Exchange(
        ArenaConfig(topology, read_table(topology.world), limit_s, format, setting),
        ddp_model.process_group,
        device=device.index if on_gpu else None,
        refusal=next((said for *_, said in asked if said), ""),
    )
    ddp_model.register_comm_hook(exchange, hvd_ext_hook)
    lifecycle.note(exchange)
    return exchange


def hvd_ext_hook(state: Exchange, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook; a function, because torch asks for its `__qualname__`."""
    return state.exchange(bucket)


def _format(asked: Format | str) -> Format:
    format = parse(asked) if isinstance(asked, str) else asked
    if format is None:
        names = ", ".join((*FORMATS, "powersgd:rank=4"))
        raise UsageError(
            f"compression {asked!r} measures the optimizer's steps: for DDP use one of {names}"
        )
    return format


def check(ddp_model: DistributedDataParallel) -> torch.device:
    """Refuse models that `attach` does not serve, on every rank alike.

    Returns:
        The device of the model's gradients.

    Raises:
        UsageError: it is not a DDP model, is not on the CPU or one GPU, or has gradients that are
            not served there.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise UsageError(
            f"attach() takes a DistributedDataParallel model, not {type(ddp_model).__name__}: wrap "
            "the model first"
        )
    trained = [(n, p) for n, p in ddp_model.module.named_parameters() if p.requires_grad]
    places = list(dict.fromkeys(parameter.device for _, parameter in trained))
    for name, parameter in trained:
        dtype, place = dtype_name(parameter.dtype), parameter.device
        if dtype not in _SERVED.get(place.type, ()):
            raise UsageError(
                f"parameter {name!r} is {dtype} on {place}: attach() serves float16, bfloat16 and "
                "float32 on the CPU and on GPUs of CUDA, and float64 on the CPU; leave this model "
                "to its process group"
            )
    if len(places) > 1:
        raise UsageError(
            f"parameters are on {' and '.join(map(str, places))}: attach() serves a model on one "
            "device; leave this model to its process group"
        )
    for name, module in ddp_model.module.named_modules():
        if getattr(module, "sparse", False) and isinstance(
            module, (torch.nn.Embedding, torch.nn.EmbeddingBag)
        ):
            raise UsageError(
                f"module {name!r} has sparse gradients: make it with sparse=False, or leave this "
                "model to its process group"
            )
    return places[0] if places else torch.device("cpu")
