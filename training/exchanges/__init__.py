"""The values of `--exchange` besides Horovod and hvd_ext."""
