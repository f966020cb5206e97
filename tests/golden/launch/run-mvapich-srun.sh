# MVAPICH 4.0, started by srun
# note: MVAPICH has never been run by hvd_ext's tests; its settings are from its guides
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
srun --mpi=pmi2 --ntasks=8 --nodes=2 --ntasks-per-node=4 --nodelist=node1,node2 --overlap --cpu-bind=none --kill-on-bad-exit=1 --quit-on-interrupt --export=ALL python train.py
