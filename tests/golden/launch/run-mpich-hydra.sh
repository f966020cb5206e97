# MPICH 5.0, started by mpirun
# the library checks whether a buffer is on a GPU
# default: 1 in a library built for GPUs (MPICH's CVAR descriptions (MPI_T), src/mpid/ch4/shm/ipc/gpu/gpu_post.c)
export MPIR_CVAR_ENABLE_GPU=1
# messages from this many bytes on go from GPU to GPU by CUDA IPC
# default: 1048576 (MPICH's CVAR descriptions (MPI_T), src/mpid/ch4/shm/ipc/gpu/gpu_post.c)
export MPIR_CVAR_CH4_IPC_GPU_P2P_THRESHOLD=1048576
# keeps memory registered with the network card between messages
# default: try (UCX's ucx_info -cf)
export UCX_RCACHE_ENABLE=try
# libfabric keeps memory registered, and detects its release by hooks
# default: memhooks (libfabric's fi_mr(3))
export FI_MR_CACHE_MONITOR=memhooks
mpirun -np 8 -hosts node1:4,node2:4 -bind-to none -genvall python train.py
