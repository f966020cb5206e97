/* UCC's allreduce, over UCX, in place and persistent. */
#define _GNU_SOURCE
#include "timed.h"
#include "ucc_team.h"

static int allreduce(void *buffer, size_t count, enum format format)
{
    static const ucc_datatype_t types[] = {UCC_DT_FLOAT32, UCC_DT_BFLOAT16};
    static ucc_coll_req_h request;
    static size_t planned_count;
    static enum format planned_format = FORMATS;
    if (format == FLOAT16) /* the CPU's reductions lack it */
        return 1;
    if (count != planned_count || format != planned_format) {
        if (request)
            ucc_collective_finalize(request);
        request = NULL;
        ucc_coll_args_t args = {.mask = UCC_COLL_ARGS_FIELD_FLAGS,
                                .flags = UCC_COLL_ARGS_FLAG_IN_PLACE |
                                         UCC_COLL_ARGS_FLAG_PERSISTENT,
                                .coll_type = UCC_COLL_TYPE_ALLREDUCE,
                                .op = UCC_OP_SUM};
        args.src.info.buffer = args.dst.info.buffer = buffer;
        args.src.info.count = args.dst.info.count = count;
        args.src.info.datatype = args.dst.info.datatype = types[format];
        args.src.info.mem_type = args.dst.info.mem_type = UCC_MEMORY_TYPE_HOST;
        if (ucc_collective_init(&args, &request, team) < 0)
            return 1;
        planned_count = count;
        planned_format = format;
    }
    complete(request);
    return 0;
}
