# Intel MPI 2021.11, started by mpirun
# a rank of a training framework has threads to spread
# default: 1: each rank is bound to its share of the cores (Intel MPI Library developer reference for Linux, process pinning)
export I_MPI_PIN=0
# a thread that waits in MPI, such as Horovod's, leaves its core to one that computes
# default: -1: it spins (impi_info -v I_MPI_THREAD_YIELD; MPI_T's MPIR_CVAR_IMPI_THREAD_YIELD)
export I_MPI_THREAD_YIELD=2
# MPI calls take GPU buffers
# default: 0: no GPU buffers (Intel MPI Library developer reference for Linux, GPU support)
export I_MPI_OFFLOAD=1
# NVIDIA GPUs: in the reference of 2021.14, not in that of 2021.9
# default: auto (Intel MPI Library developer reference for Linux, GPU support)
export I_MPI_OFFLOAD_MODE=cuda
# GPUs of a node copy from each other's memory
# default: undocumented (found in sites' job scripts only; not run)
export I_MPI_OFFLOAD_IPC=1
# libfabric keeps memory registered, and detects its release by hooks
# default: memhooks (libfabric's fi_mr(3))
export FI_MR_CACHE_MONITOR=memhooks
mpirun -np 8 -ppn 4 -hosts node1,node2 -genvall python train.py
