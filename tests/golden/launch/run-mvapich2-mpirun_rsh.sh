# MVAPICH2 2.3, started by mpirun_rsh
# Horovod asks for MPI_THREAD_MULTIPLE, and its threads need separate cores
# default: 1: each rank is bound to a core (MVAPICH2 2.3.7 user guide, MVAPICH2 parameters)
export MV2_ENABLE_AFFINITY=0
# memory is allocated by several threads, for which this allocator is faster
# default: 0 (MVAPICH2 2.3.7 user guide, MVAPICH2 parameters)
export MV2_USE_ALIGNED_ALLOC=1
# that message advises the variable above
# default: 1: each job prints that threads were requested (MVAPICH2 2.3.7 user guide, MVAPICH2 parameters)
export MV2_USE_THREAD_WARNING=0
# MPI calls take GPU buffers
# default: 0: no GPU buffers, and none of the other CUDA variables counts (MVAPICH2 2.3.7 user guide, MVAPICH2 parameters)
export MV2_USE_CUDA=1
# GPUs of a node copy from each other's memory
# default: 1 (MVAPICH2 2.3.7 user guide, MVAPICH2 parameters)
export MV2_CUDA_IPC=1
# the InfiniBand registration cache: memory stays registered between messages
# default: 1, but off where its malloc hooks fail (MVAPICH2 2.3.7 user guide, MVAPICH2 parameters)
export MV2_USE_LAZY_MEM_UNREGISTER=1
# opens each IPC handle once: Horovod's fusion buffer keeps its address
# default: 1 (MVAPICH2 2.3.7 user guide, MVAPICH2 parameters)
export MV2_CUDA_ENABLE_IPC_CACHE=1
mpirun_rsh -np 8 node1 node1 node1 node1 node2 node2 node2 node2 MV2_CUDA_ENABLE_IPC_CACHE=1 MV2_CUDA_IPC=1 MV2_ENABLE_AFFINITY=0 MV2_USE_ALIGNED_ALLOC=1 MV2_USE_CUDA=1 MV2_USE_LAZY_MEM_UNREGISTER=1 MV2_USE_THREAD_WARNING=0 OMP_NUM_THREADS=8 PATH=/opt/mpi/bin:/usr/bin python train.py
