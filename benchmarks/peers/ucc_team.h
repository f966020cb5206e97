/* A team of UCC of all ranks, and one of its persistent collectives, start to end. */
#ifndef HVD_EXT_UCC_TEAM_H
#define HVD_EXT_UCC_TEAM_H

#include <mpi.h>
#include <stdio.h>
#include <ucc/api/ucc.h>

static ucc_context_h context;
static ucc_team_h team;

static void check(ucc_status_t status, const char *what)
{
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", what, ucc_status_string(status));
        MPI_Abort(MPI_COMM_WORLD, 4);
    }
}

/* UCC exchanges its addresses by MPI. */
static ucc_status_t gather(void *own, void *all, size_t bytes, void *unused, void **request)
{
    (void)unused;
    *request = NULL;
    MPI_Allgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
    return UCC_OK;
}

static ucc_status_t gathered(void *request)
{
    (void)request;
    return UCC_OK;
}

/* Makes `context` and `team` of all ranks. */
static void prepare(int rank, int size)
{
    ucc_oob_coll_t oob = {.allgather = gather,
                          .req_test = gathered,
                          .req_free = gathered,
                          .n_oob_eps = (uint32_t)size,
                          .oob_ep = (uint32_t)rank};
    ucc_lib_params_t wanted = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE,
                               .thread_mode = UCC_THREAD_SINGLE};
    ucc_lib_config_h lib_config;
    ucc_lib_h lib;
    check(ucc_lib_config_read(NULL, NULL, &lib_config), "ucc_lib_config_read");
    check(ucc_init(&wanted, lib_config, &lib), "ucc_init");
    ucc_context_config_h config;
    check(ucc_context_config_read(lib, NULL, &config), "ucc_context_config_read");
    ucc_context_params_t of_context = {.mask = UCC_CONTEXT_PARAM_FIELD_OOB, .oob = oob};
    check(ucc_context_create(lib, &of_context, config, &context), "ucc_context_create");
    ucc_team_params_t of_team = {
        .mask = UCC_TEAM_PARAM_FIELD_OOB | UCC_TEAM_PARAM_FIELD_EP |
                UCC_TEAM_PARAM_FIELD_EP_RANGE,
        .oob = oob,
        .ep = (uint64_t)rank,
        .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG};
    check(ucc_team_create_post(&context, 1, &of_team, &team), "ucc_team_create_post");
    ucc_status_t status;
    while ((status = ucc_team_create_test(team)) == UCC_INPROGRESS)
        ucc_context_progress(context);
    check(status, "ucc_team_create_test");
}

static void complete(ucc_coll_req_h request)
{
    check(ucc_collective_post(request), "ucc_collective_post");
    ucc_status_t status;
    while ((status = ucc_collective_test(request)) == UCC_INPROGRESS)
        ucc_context_progress(context);
    check(status, "ucc_collective_test");
}

#endif
