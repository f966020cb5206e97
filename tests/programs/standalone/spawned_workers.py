"""A data loader's workers import this module again, and so mpi4py, before the job has ended."""

import torch
from mpi4py import MPI
from torch.utils.data import DataLoader, TensorDataset

import hvd_ext.torch as hvd

if __name__ == "__main__":
    hvd.init()
    rows = TensorDataset(torch.arange(4.0))
    for method in ("spawn", "forkserver"):
        loader = DataLoader(rows, 4, num_workers=1, multiprocessing_context=method)
        total = sum(batch.sum() for (batch,) in loader)
        assert hvd.allreduce(total, op=hvd.Sum).item() == 6 * hvd.size()
    print("loaded on rank", MPI.COMM_WORLD.rank, flush=True)
