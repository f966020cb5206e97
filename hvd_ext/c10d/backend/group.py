"""The process group as torch sees it: its collectives that reduce, and all others."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_ext.c10d.backend.copying import Copying
from hvd_ext.c10d.backend.core import collective
from hvd_ext.c10d.backend.reductions import Reduction, reduction_of
from hvd_ext.c10d.backend.tensors import read, write_back
from hvd_ext.c10d.backend.work import Work
from hvd_ext.c10d.torch_internals import untraced
from hvd_ext.engine.compared import AgreedError
from hvd_ext.errors import UsageError
from hvd_ext.tensors import dtype_name


class Group(Copying):
    """The ranks of one process group: all of torch's collectives, and point to point."""

    @collective
    def allreduce(self, tensors: list[Tensor], options: Any = None) -> Work:
        """Reduce each tensor over all ranks, in place; sparse ones are summed or averaged."""
        name = "all_reduce()"
        reductions = [reduction_of(name, options, tensor.dtype) for tensor in tensors]
        for tensor, reduction in zip(tensors, reductions, strict=True):
            if tensor.is_sparse and reduction.kernel != "sum":
                raise UsageError(f"{name} of a sparse tensor: use SUM or AVG")

        def do() -> None:
            for tensor, reduction in zip(tensors, reductions, strict=True):
                (self._sum_sparse if tensor.is_sparse else self._reduce)(tensor, reduction)

        return self._begin(
            name,
            used=tensors,
            result=tensors,
            do=do,
            options=options,
            operation=_names(reductions),
            may_be_sparse=True,
        )

    allreduce_coalesced = allreduce

    @collective
    def reduce(self, tensors: list[Tensor], options: Any) -> Work:
        """Reduce each tensor over all ranks; the root alone has the result."""
        name = "reduce()"
        reductions = [reduction_of(name, options, tensor.dtype) for tensor in tensors]

        root = options.rootRank
        is_root = root == self._own

        def do() -> None:
            for tensor, reduction in zip(tensors, reductions, strict=True):
                self._reduce(tensor if is_root else tensor.detach().clone(), reduction)

        return self._begin(
            name,
            used=tensors,
            result=tensors,
            do=do,
            options=options,
            writes=tensors if is_root else [],
            operation=_names(reductions),
            root=root,
        )

    @untraced
    def reduce_scatter_single(self, out: Tensor, own: Tensor, options: Any = None) -> Work:
        """Have `out` hold this rank's part of the reduction of `own`."""
        return self.reduce_scatter_single_coalesced([out], [own], options)

    @collective
    def reduce_scatter_single_coalesced(
        self, outs: list[Tensor], owns: list[Tensor], options: Any = None
    ) -> Work:
        """The same for several tensors."""
        name = "reduce_scatter_single()"
        reductions = [reduction_of(name, options, out.dtype) for out in outs]
        for out, own in zip(outs, owns, strict=True):
            self._check_whole(name, own, out)

        def do() -> None:
            for out, own, reduction in zip(outs, owns, reductions, strict=True):
                begin = self._own * out.numel()
                self._reduce_scatter(out, own.detach().reshape(-1), begin, reduction, True)

        return self._begin(name, [*outs, *owns], outs, do, options, operation=_names(reductions))

    @collective
    def reduce_scatter(
        self, outs: list[Tensor], lists: list[list[Tensor]], options: Any = None
    ) -> Work:
        """Have each of `outs` hold this rank's entry of the reduction of a list."""
        name = "reduce_scatter()"
        reductions = [reduction_of(name, options, out.dtype) for out in outs]
        for out, parts in zip(outs, lists, strict=True):
            self._check_list(name, parts, out)

        def do() -> None:
            for out, parts, reduction in zip(outs, lists, reductions, strict=True):
                whole = torch.cat([part.detach().reshape(-1) for part in parts])
                begin = sum(part.numel() for part in parts[: self._own])
                alike = len({part.numel() for part in parts}) == 1
                self._reduce_scatter(out, whole, begin, reduction, alike)

        used = [*outs, *(tensor for parts in lists for tensor in parts)]
        return self._begin(name, used, outs, do, options, operation=_names(reductions))

    @collective
    def barrier(self, opts: Any = None) -> Work:
        """Wait until every rank is here."""
        return self._begin("barrier()", [], [], self._carrier.barrier, opts)

    # torch's names for these methods before 2.13.
    _allgather_base = Copying.all_gather_single
    allgather_into_tensor_coalesced = Copying.all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = Copying.all_to_all_single

    def _reduce(self, tensor: Tensor, reduction: Reduction) -> None:
        if not reduction.has_kernel(tensor.dtype):
            rows = torch.empty((self._count, *tensor.shape), dtype=tensor.dtype)
            self._gather(rows, tensor)
            tensor.detach().copy_(functools.reduce(reduction.combine, rows))
        else:
            dtype = dtype_name(tensor.dtype)
            block = read(tensor)
            scale = self._scale(tensor, reduction)
            self._carrier.all_reduce(block, dtype, reduction.kernel, scale)
            write_back(tensor, block)
        self._divide(tensor, reduction)

    def _sum_sparse(self, tensor: Tensor, reduction: Reduction) -> None:
        """Add the ranks' elements in the order of ranks, so that all hold the same bits."""
        own = tensor.detach().coalesce()
        shape = zlib.crc32(repr((own.shape, own.sparse_dim(), own.dtype)).encode())
        facts = torch.empty((self._count, 2), dtype=torch.int64)
        self._gather(facts, torch.tensor([len(own.values()), shape]))
        counts, shapes = facts.t().tolist()
        if len(set(shapes)) > 1:
            raise AgreedError(
                "all_reduce() of sparse tensors: shapes, sparse dimensions or dtypes differ "
                "between ranks; make them the same"
            )
        # The longest may be empty, and a gather of nothing is none.
        rows = max(1, *counts)
        indices = self._gather_rows(own.indices().t(), rows)
        values = self._gather_rows(own.values(), rows)
        wide = torch.float32 if own.dtype in (torch.float16, torch.bfloat16) else own.dtype
        first, *others = (
            torch.sparse_coo_tensor(
                places[:count].t(),
                elements[:count].to(wide),
                own.shape,
                check_invariants=False,  # they are those of tensors
                is_coalesced=True,
            )
            for count, places, elements in zip(counts, indices, values, strict=True)
        )
        total = functools.reduce(lambda sum_, theirs: (sum_ + theirs).coalesce(), others, first)
        if reduction.is_average:
            total = total / self._count
        with torch.no_grad():
            # `tensor.detach()` would not do: what is copied to it does not reach the tensor.
            tensor.copy_(total.to(own.dtype))

    def _gather_rows(self, own: Tensor, rows: int) -> Tensor:
        """Gather the rows of every rank, padded with zeros to `rows` rows each."""
        padded = torch.zeros((rows, *own.shape[1:]), dtype=own.dtype)
        padded[: len(own)] = own
        every = torch.empty((self._count, *padded.shape), dtype=own.dtype)
        self._gather(every, padded)
        return every

    def _reduce_scatter(
        self, out: Tensor, whole: Tensor, begin: int, reduction: Reduction, alike: bool
    ) -> None:
        if not (alike and reduction.has_kernel(out.dtype)):
            summed = whole.clone()
            self._reduce(summed, reduction)
            out.detach().copy_(summed[begin : begin + out.numel()].view(out.shape))
            return
        dtype, block = dtype_name(out.dtype), read(out)
        scale = self._scale(out, reduction)
        self._carrier.reduce_scatter(block, read(whole), dtype, scale, reduction.kernel)
        write_back(out, block)
        self._divide(out, reduction)

    def _scale(self, tensor: Tensor, reduction: Reduction) -> float:
        """The factor of a kernel's result, which kernels of integers do not have."""
        is_float = tensor.is_floating_point()
        return 1.0 / self._count if reduction.is_average and is_float else 1.0

    def _divide(self, tensor: Tensor, reduction: Reduction) -> None:
        """Finish an average that no kernel has divided: of integers towards zero, as on NCCL."""
        if reduction.is_average and not tensor.is_floating_point():
            rounding = None if tensor.is_complex() else "trunc"
            tensor.detach().div_(self._count, rounding_mode=rounding)


def _names(reductions: Sequence[Reduction]) -> str:
    """The reduction of a collective, which is the same for all its tensors."""
    return reductions[0].name if reductions else ""
