"""The gradient arena in device memory, over CUDA IPC."""
