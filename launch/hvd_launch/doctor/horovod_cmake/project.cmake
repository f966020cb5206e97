# Horovod 0.28.1 asks for C++14, its master for C++17.
foreach(standard 14 17)
    set(CMAKE_CXX${standard}_STANDARD_COMPILE_OPTION "-std=c++$ENV{TORCH_CXX_STANDARD}")
    set(CMAKE_CXX${standard}_EXTENSION_COMPILE_OPTION "-std=gnu++$ENV{TORCH_CXX_STANDARD}")
endforeach()

# From GCC 13 on these headers no longer come with others, and Horovod 0.28.1 relied on that.
string(APPEND CMAKE_CXX_FLAGS " -include cstdint -include stdexcept -include string")

# Where torch is a CUDA build, Horovod builds its CUDA parts with whatever nvcc it finds, and
# stops if no toolkit belongs to that nvcc. Without a GPU they are left out.
if("$ENV{HOROVOD_WITHOUT_CUDA}" STREQUAL "1")
    set(CMAKE_CUDA_COMPILER NOTFOUND)
    set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit TRUE)
    list(PREPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}/without_cuda")
endif()
