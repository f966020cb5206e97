"""`hvd-launch tune`: finds an MPI library's and Horovod's best settings by measuring."""
