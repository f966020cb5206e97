"""`attach`: a DistributedDataParallel model's gradients through the node's memory."""

# No `from __future__ import annotations`: torch compares the hook's annotations with classes.
import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from hvd_ext import variables
from hvd_ext.c10d import lifecycle
from hvd_ext.c10d.exchange import Exchange
from hvd_ext.c10d.ranks import limit_s_of, topology_of
from hvd_ext.compression.formats import FORMATS, Format, parse
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import MismatchError, UsageError
from hvd_ext.tensors import dtype_name


def attach(ddp_model: DistributedDataParallel, compression: Format | str | None = None) -> Exchange:
    """Have a DDP model's gradients exchanged by hvd_ext; collective over its process group.

    Within a node each rank reduces its shard of a bucket in its peers' memory. Between nodes the
    shards travel by the algorithm that the table names, or in a format of fewer bytes. Everything
    else stays with the model's process group. The model takes no other communication hook.

    Args:
        ddp_model: on the CPU, with dense gradients of float16, bfloat16, float32 or float64.
        compression: how float32 travels between nodes: "none", "bf16", "fp16", "int8" or
            "powersgd:rank=4". By default HVD_EXT_COMPRESSION, or "none".

    Returns:
        The exchange; `explain()` says how it is made.

    Raises:
        UsageError: the model, the format or the way the ranks were started is not supported.
        MismatchError: ranks ask for different formats.
        StallError: ranks did not reach this in time; names them.
    """
    format = _format(variables.COMPRESSION.read() if compression is None else compression)
    check(ddp_model)
    topology = topology_of(ddp_model.process_group)
    timeout_s = limit_s_of(ddp_model.process_group)
    asked = topology.allgather(format.name, timeout_s, "hvd_ext.c10d.attach()")
    for rank, name in zip(topology.ranks, asked, strict=True):
        if name != asked[0]:
            raise MismatchError(
                f"compression: rank {rank} asks for {name!r}, and rank {topology.ranks[0]} for "
                f"{asked[0]!r}: ask for the same on every rank"
            )
    exchange = Exchange(topology, ddp_model.process_group, format, timeout_s)
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


def check(ddp_model: DistributedDataParallel) -> None:
    """Refuse what `attach` does not serve; the same on every rank.

    Raises:
        UsageError: the model is not DDP's, not on the CPU, or has gradients that it does not serve.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise UsageError(
            f"attach() takes a DistributedDataParallel model, not {type(ddp_model).__name__}: wrap "
            "the model first"
        )
    for name, parameter in ddp_model.module.named_parameters():
        dtype = dtype_name(parameter.dtype)
        if parameter.requires_grad and (parameter.device.type != "cpu" or dtype not in DTYPES):
            raise UsageError(
                f"parameter {name!r} is {dtype} on {parameter.device}: attach() serves float16, "
                "bfloat16, float32 and float64 on the CPU; leave this model to its process group"
            )
    for name, module in ddp_model.module.named_modules():
        if getattr(module, "sparse", False) and isinstance(
            module, (torch.nn.Embedding, torch.nn.EmbeddingBag)
        ):
            raise UsageError(
                f"module {name!r} has sparse gradients: make it with sparse=False, or leave this "
                "model to its process group"
            )
