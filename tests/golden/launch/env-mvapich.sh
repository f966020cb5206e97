# mpi: neither CUDA IPC nor the registration cache: the result of PyTorch's usual advice
# the library checks whether a buffer is on a GPU
# default: 1 in a library built for GPUs (MPICH's CVARs, which MVAPICH 4.0's source also has under MVP_; not run)
export MVP_ENABLE_GPU=1
# no message is long enough for CUDA IPC
# default: 1048576 (MPICH's CVARs, which MVAPICH 4.0's source also has under MVP_; not run)
export MVP_CH4_IPC_GPU_P2P_THRESHOLD=2147483647
# registers memory again for each large message
# default: try (UCX's ucx_info -cf)
export UCX_RCACHE_ENABLE=n
# libfabric registers memory again for each large message
# default: memhooks (libfabric's fi_mr(3))
export FI_MR_CACHE_MONITOR=disabled

# mpi-reg: the registration cache, without CUDA IPC
# the library checks whether a buffer is on a GPU
# default: 1 in a library built for GPUs (MPICH's CVARs, which MVAPICH 4.0's source also has under MVP_; not run)
export MVP_ENABLE_GPU=1
# no message is long enough for CUDA IPC
# default: 1048576 (MPICH's CVARs, which MVAPICH 4.0's source also has under MVP_; not run)
export MVP_CH4_IPC_GPU_P2P_THRESHOLD=2147483647
# keeps memory registered with the network card between messages
# default: try (UCX's ucx_info -cf)
export UCX_RCACHE_ENABLE=try
# libfabric keeps memory registered, and detects its release by hooks
# default: memhooks (libfabric's fi_mr(3))
export FI_MR_CACHE_MONITOR=memhooks

# mpi-opt: CUDA IPC and the registration cache
# the library checks whether a buffer is on a GPU
# default: 1 in a library built for GPUs (MPICH's CVARs, which MVAPICH 4.0's source also has under MVP_; not run)
export MVP_ENABLE_GPU=1
# messages from this many bytes on go from GPU to GPU by CUDA IPC
# default: 1048576 (MPICH's CVARs, which MVAPICH 4.0's source also has under MVP_; not run)
export MVP_CH4_IPC_GPU_P2P_THRESHOLD=1048576
# keeps memory registered with the network card between messages
# default: try (UCX's ucx_info -cf)
export UCX_RCACHE_ENABLE=try
# libfabric keeps memory registered, and detects its release by hooks
# default: memhooks (libfabric's fi_mr(3))
export FI_MR_CACHE_MONITOR=memhooks
