# Open MPI 5.0, started by srun
# a thread that waits in MPI, such as Horovod's, leaves its core to one that computes
# default: 0, but 1 where mpirun knows of more ranks than slots (ompi_info --param mpi all --level 9)
export OMPI_MCA_mpi_yield_when_idle=1
# longer messages over TCP wait for both processes, which costs a tenth of the bandwidth
# default: 65536 (ompi_info --param btl tcp --level 9; python -m benchmarks.compression)
export OMPI_MCA_btl_tcp_eager_limit=528384
# GPUs of a node copy from each other's memory (pml ob1, as under horovodrun)
# default: 1 (ompi_info --param btl smcuda --level 9)
export OMPI_MCA_btl_smcuda_use_cuda_ipc=1
# keeps memory registered with the network card between messages (pml ob1)
# default: -1: on where a transport asks for it (ompi_info --param mpi all --level 9; Open MPI FAQ, tuning with leave_pinned)
export OMPI_MCA_mpi_leave_pinned=1
# UCX may copy between the GPUs of a node by CUDA IPC
# default: all (UCX's ucx_info -cf)
export UCX_TLS=all
# keeps memory registered with the network card between messages
# default: try (UCX's ucx_info -cf)
export UCX_RCACHE_ENABLE=try
# opens each IPC handle once: Horovod's fusion buffer keeps its address
# default: y (UCX's ucx_info -cf)
export UCX_CUDA_IPC_CACHE=y
# coll/cuda (priority 78) would stage an allreduce of GPU buffers in the host, where CUDA IPC does not help: UCC reduces on the GPUs, if it is built in
# default: 0 (ompi_info --param coll ucc --level 9; ompi/mca/coll/cuda, priority 78)
export OMPI_MCA_coll_ucc_enable=1
# above coll/cuda's 78, else UCC is never used
# default: below coll/cuda's (ompi_info --param coll ucc --level 9; ompi/mca/coll/cuda, priority 78)
export OMPI_MCA_coll_ucc_priority=100
srun --mpi=pmix_v4 --ntasks=8 --nodes=2 --ntasks-per-node=4 --nodelist=node1,node2 --overlap --cpu-bind=none --kill-on-bad-exit=1 --quit-on-interrupt --export=ALL python train.py
