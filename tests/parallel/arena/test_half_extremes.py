"""binary16 and bfloat16 at their edges: every bit pattern, through the arena's kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hvd_ext.allreduce.table import BUILT_IN
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import ParameterSpec, layout_by_size


@pytest.mark.ranks(2)
@pytest.mark.parametrize("scale", [1.0, 0.5, 3.0e-5])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_pattern(topology, dtype, scale):
    spec = ParameterSpec("p", (1 << 16,), (1,), dtype)
    arena = HostArena(ArenaConfig(topology, BUILT_IN, 30), layout_by_size([spec], 1 << 20), scale)
    patterns = np.arange(1 << 16, dtype=np.uint16)
    parts = [patterns, np.roll(patterns, 12345)]
    raw = np.frombuffer(arena.data, np.uint16, 1 << 16)
    raw[:] = parts[topology.world.rank]
    arena.reduce(0)
    arena.finish()
    torch_dtype = getattr(torch, dtype)
    first, second = (torch.from_numpy(part).view(torch_dtype).float() for part in parts)
    expected = ((first + second) * scale).to(torch_dtype)
    got = torch.from_numpy(raw.copy()).view(torch_dtype)
    both_nan = got.isnan() & expected.isnan()
    same = got.view(torch.int16) == expected.view(torch.int16)
    wrong = ~(both_nan | same)
    assert not wrong.any(), (got[wrong][:5], expected[wrong][:5])
    topology.world.Barrier()
    arena.close()
