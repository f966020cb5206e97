/* UCC's collectives on memory that is given by its address, persistent, as calls.py asks for them. */
#include "../peers/ucc_team.h"

/* In the order of calls.COLLECTIVES. */
static const ucc_coll_type_t TYPES[] = {
    UCC_COLL_TYPE_ALLREDUCE, UCC_COLL_TYPE_REDUCE_SCATTER, UCC_COLL_TYPE_ALLGATHER,
    UCC_COLL_TYPE_BCAST,     UCC_COLL_TYPE_ALLTOALL,       UCC_COLL_TYPE_BARRIER,
};

void make_team(int rank, int size)
{
    prepare(rank, size);
}

/* A collective of float32, the root of a broadcast being rank 0; the counts are of elements. */
ucc_coll_req_h make_call(int number, void *own, size_t own_count, void *out, size_t out_count)
{
    ucc_coll_args_t args = {.mask = UCC_COLL_ARGS_FIELD_FLAGS,
                            .flags = UCC_COLL_ARGS_FLAG_PERSISTENT,
                            .coll_type = TYPES[number],
                            .op = UCC_OP_SUM};
    if (own == out)
        args.flags |= UCC_COLL_ARGS_FLAG_IN_PLACE;
    args.src.info.buffer = own;
    args.src.info.count = own_count;
    args.dst.info.buffer = out;
    args.dst.info.count = out_count;
    args.src.info.datatype = args.dst.info.datatype = UCC_DT_FLOAT32;
    args.src.info.mem_type = args.dst.info.mem_type = UCC_MEMORY_TYPE_HOST;
    ucc_coll_req_h request = NULL;
    check(ucc_collective_init(&args, &request, team), "ucc_collective_init");
    return request;
}

void run_call(ucc_coll_req_h request)
{
    complete(request);
}

void end_call(ucc_coll_req_h request)
{
    check(ucc_collective_finalize(request), "ucc_collective_finalize");
}
