"""A stock Horovod program: prints what 20 steps of fused and single allreduces give."""

from __future__ import annotations

import os
import time

import horovod.torch as hvd
import torch

if __name__ == "__main__":
    hvd.init()
    torch.manual_seed(hvd.rank())
    total = torch.zeros((), dtype=torch.float64)
    for step in range(20):
        # 4000 + 8000 bytes of one type: sent apart or fused, as Horovod's cycle falls.
        handles = [
            hvd.allreduce_async(torch.randn(count), name=f"{step}.{count}", op=hvd.Sum)
            for count in (1000, 2000)
        ]
        total += sum(hvd.synchronize(handle).double().sum() for handle in handles)
        # What the controller uses as a type of its own: still data.
        whole = torch.full((500,), step, dtype=torch.int64)
        total += hvd.allreduce(whole, name=f"{step}.whole", op=hvd.Sum).sum()
        half = torch.ones(300, dtype=torch.float16)
        total += hvd.allreduce(half, name=f"{step}.half", op=hvd.Sum).double().sum()
    if hvd.rank() == 0:
        print(f"result {total.item().hex()}")
    if "HOROVOD_TIMELINE" in os.environ:
        # At its end Horovod drops what the thread that writes the timeline has not come to.
        time.sleep(1)
