/* oneCCL's allreduce, on the CPU. */
#include <memory>
#include <oneapi/ccl.hpp>

#include "timed.h"

/* The package's archive lacks the library of Intel's tracer, by whose variables it finds a tool. */
#define NO_TOOL(NAME) void *__itt_##NAME##_ptr__3_0;
extern "C" {
NO_TOOL(domain_create)
NO_TOOL(event_create)
NO_TOOL(event_end)
NO_TOOL(event_start)
NO_TOOL(metadata_add)
NO_TOOL(string_handle_create)
NO_TOOL(task_begin)
NO_TOOL(task_end)
NO_TOOL(thread_set_name)
}

static std::unique_ptr<ccl::communicator> communicator;

static void prepare(int rank, int size)
{
    ccl::init();
    ccl::kvs::address_type address;
    ccl::shared_ptr_class<ccl::kvs> store;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
    }
    MPI_Bcast(address.data(), (int)address.size(), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0)
        store = ccl::create_kvs(address);
    communicator.reset(new ccl::communicator(ccl::create_communicator(size, rank, store)));
}

static int allreduce(void *buffer, size_t count, enum format format)
{
    static const ccl::datatype types[] = {ccl::datatype::float32, ccl::datatype::bfloat16,
                                          ccl::datatype::float16};
    ccl::allreduce(buffer, buffer, count, types[format], ccl::reduction::sum, *communicator).wait();
    return 0;
}
