# mpi: neither CUDA IPC nor the registration cache: the result of PyTorch's usual advice
# Horovod asks for MPI_THREAD_MULTIPLE, and its threads need separate cores
# default: 1: each rank is bound to a core (MVAPICH2-GDR 2.3.7 user guide)
export MV2_ENABLE_AFFINITY=0
# memory is allocated by several threads, for which this allocator is faster
# default: 0 (MVAPICH2-GDR 2.3.7 user guide)
export MV2_USE_ALIGNED_ALLOC=1
# that message advises the variable above
# default: 1: each job prints that threads were requested (MVAPICH2-GDR 2.3.7 user guide)
export MV2_USE_THREAD_WARNING=0
# MPI calls take GPU buffers
# default: 0: no GPU buffers, and none of the other CUDA variables counts (MVAPICH2-GDR 2.3.7 user guide)
export MV2_USE_CUDA=1
# made for Horovod and other frameworks; not together with LD_PRELOAD
# default: unset (MVAPICH2-GDR 2.3.7 user guide)
export MV2_SUPPORT_DL=1
# GPUs of a node exchange through the host
# default: 1 (MVAPICH2-GDR 2.3.7 user guide)
export MV2_CUDA_IPC=0
# no registration cache: memory is registered again for each large message
# default: 1, but off where its malloc hooks fail (MVAPICH2-GDR 2.3.7 user guide)
export MV2_USE_LAZY_MEM_UNREGISTER=0

# mpi-reg: the registration cache, without CUDA IPC
# Horovod asks for MPI_THREAD_MULTIPLE, and its threads need separate cores
# default: 1: each rank is bound to a core (MVAPICH2-GDR 2.3.7 user guide)
export MV2_ENABLE_AFFINITY=0
# memory is allocated by several threads, for which this allocator is faster
# default: 0 (MVAPICH2-GDR 2.3.7 user guide)
export MV2_USE_ALIGNED_ALLOC=1
# that message advises the variable above
# default: 1: each job prints that threads were requested (MVAPICH2-GDR 2.3.7 user guide)
export MV2_USE_THREAD_WARNING=0
# MPI calls take GPU buffers
# default: 0: no GPU buffers, and none of the other CUDA variables counts (MVAPICH2-GDR 2.3.7 user guide)
export MV2_USE_CUDA=1
# made for Horovod and other frameworks; not together with LD_PRELOAD
# default: unset (MVAPICH2-GDR 2.3.7 user guide)
export MV2_SUPPORT_DL=1
# GPUs of a node exchange through the host
# default: 1 (MVAPICH2-GDR 2.3.7 user guide)
export MV2_CUDA_IPC=0
# the InfiniBand registration cache: memory stays registered between messages
# default: 1, but off where its malloc hooks fail (MVAPICH2-GDR 2.3.7 user guide)
export MV2_USE_LAZY_MEM_UNREGISTER=1

# mpi-opt: CUDA IPC and the registration cache
# Horovod asks for MPI_THREAD_MULTIPLE, and its threads need separate cores
# default: 1: each rank is bound to a core (MVAPICH2-GDR 2.3.7 user guide)
export MV2_ENABLE_AFFINITY=0
# memory is allocated by several threads, for which this allocator is faster
# default: 0 (MVAPICH2-GDR 2.3.7 user guide)
export MV2_USE_ALIGNED_ALLOC=1
# that message advises the variable above
# default: 1: each job prints that threads were requested (MVAPICH2-GDR 2.3.7 user guide)
export MV2_USE_THREAD_WARNING=0
# MPI calls take GPU buffers
# default: 0: no GPU buffers, and none of the other CUDA variables counts (MVAPICH2-GDR 2.3.7 user guide)
export MV2_USE_CUDA=1
# made for Horovod and other frameworks; not together with LD_PRELOAD
# default: unset (MVAPICH2-GDR 2.3.7 user guide)
export MV2_SUPPORT_DL=1
# GPUs of a node copy from each other's memory
# default: 1 (MVAPICH2-GDR 2.3.7 user guide)
export MV2_CUDA_IPC=1
# the InfiniBand registration cache: memory stays registered between messages
# default: 1, but off where its malloc hooks fail (MVAPICH2-GDR 2.3.7 user guide)
export MV2_USE_LAZY_MEM_UNREGISTER=1
# opens each IPC handle once: Horovod's fusion buffer keeps its address
# default: 1 (MVAPICH2-GDR 2.3.7 user guide)
export MV2_CUDA_ENABLE_IPC_CACHE=1
