"""hvd-launch tune fusion: the threshold and the cycle time of Horovod's fusion."""
