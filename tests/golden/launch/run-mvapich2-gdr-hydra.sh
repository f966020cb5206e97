# MVAPICH2-GDR 2.3, started by mpirun
# note: MVAPICH2-GDR has never been run by hvd_ext's tests; its settings are from its guides
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
mpirun -np 8 -hosts node1:4,node2:4 -bind-to none -genvall python train.py
