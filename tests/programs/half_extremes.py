"""binary16 and bfloat16 at their edges: every bit pattern, through the arena's kernel."""

from __future__ import annotations

import numpy as np
import torch
from mpi4py import MPI

from hvd_ext.allreduce.table import BUILT_IN
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from hvd_ext.job.topology import discover


def main() -> None:
    topology = discover(MPI.COMM_WORLD, 30)
    rank = topology.world.rank
    for dtype in ("float16", "bfloat16"):
        for scale in (1.0, 0.5, 3.0e-5):
            spec = ParameterSpec("p", (1 << 16,), (1,), dtype)
            plan = layout_by_size([spec], 1 << 20)
            arena = HostArena(topology, plan, scale, BUILT_IN, 30)
            patterns = np.arange(1 << 16, dtype=np.uint16)
            raw = np.frombuffer(arena.data, np.uint16, 1 << 16)
            if rank == 0:
                raw[:] = patterns
            else:
                raw[:] = np.roll(patterns, 12345)
            arena.reduce(0)
            arena.finish()
            torch_dtype = getattr(torch, dtype)
            parts = [
                torch.from_numpy(p.copy()).view(torch_dtype).float()
                for p in (patterns, np.roll(patterns, 12345))
            ]
            expected = ((parts[0] + parts[1]) * scale).to(torch_dtype)
            got = torch.from_numpy(raw.copy()).view(torch_dtype)
            both_nan = got.isnan() & expected.isnan()
            same = torch.from_numpy(raw.copy()).view(torch.int16) == expected.view(torch.int16)
            wrong = ~(both_nan | same)
            assert not wrong.any(), (dtype, scale, got[wrong][:5], expected[wrong][:5])
            topology.world.Barrier()
            arena.close()
    print(f"ok {rank}")


main()
