# Horovod's own module, and then torch as if it were a build for the CPU.
include("${PROJECT_SOURCE_DIR}/cmake/Modules/FindPytorch.cmake")
set(Pytorch_CUDA FALSE)
list(FILTER Pytorch_LIBRARIES EXCLUDE REGEX "/lib[a-z0-9_]*cud[^/]*$|NOTFOUND")
