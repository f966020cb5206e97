# Horovod pins a C++ standard; torch may need a later one, TORCH_CXX_STANDARD in the environment
# (17 or 20). Horovod's CMakeLists strips a -std flag given in CXXFLAGS, so the meaning of
# "C++14" and "C++17" is redefined instead, right after project() has set the compiler's values.
set(CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/project.cmake")

# The built wheel is shared by every checkout, so the MPI library is looked for first
# in the environment that horovod/torch/*.so is installed in (its lib folder, four
# levels up), then where it was when Horovod was built (an MPI of the system).
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../../../..")
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
