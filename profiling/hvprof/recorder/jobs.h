/* Which job of the recording's folder this is. A command may start several, one after the
 * other or at once, and MPI_Comm_spawn starts more. The first job has the folder itself, and job N
 * the folder "N" in it (recording/jobs.py).
 *
 * Ranks find their number without MPI: a rank without the recorder would take no part, and the
 * others would wait for it in MPI_Init without an end. A symbolic link "job-N" claims a number,
 * and its target is the job's name: what the launcher gave to all its ranks, and to no other job.
 */
#ifndef HVPROF_JOBS_H
#define HVPROF_JOBS_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mpi/library.h"
#include "recorder.h"
#include "run_usage.h"

#define JOB_LINK "job-%d" /* as in recording/jobs.py */
#define STRANGE_MPI "strange-mpi" /* in recording/jobs.py, too */
#define UNNAMED "unnamed"
enum { MOST_JOBS = 10000, JOB_NAME_BYTES = 512 };

/* The word that follows `flag` in a command line, whose words end with a zero each; or NULL. */
static const char *word_after(const char *words, size_t length, const char *flag)
{
    for (const char *word = words; word < words + length; word += strlen(word) + 1) {
        const char *next = word + strlen(word) + 1;
        if (!strcmp(word, flag) && next < words + length)
            return next;
    }
    return NULL;
}

/* Hydra gives ranks no variable that names the job. Their nearest proxy has the port of the job's
 * mpiexec in its command line, on every host. */
static bool name_by_hydra(char *name)
{
    char path[64], words[4096];
    for (uint64_t pid = (uint64_t)getppid(); pid > 1; pid = value_in(path, "PPid:")) {
        snprintf(path, sizeof path, "/proc/%llu/cmdline", (unsigned long long)pid);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t length = file < 0 ? 0 : read(file, words, sizeof words - 1);
        if (file >= 0)
            close(file);
        words[length > 0 ? length : 0] = '\0';
        const char *slash = strrchr(words, '/');
        if (!strcmp(slash ? slash + 1 : words, "hydra_pmi_proxy")) {
            const char *port = word_after(words, (size_t)length, "--control-port");
            if (port)
                snprintf(name, JOB_NAME_BYTES, "hydra %s", port);
            return port;
        }
        snprintf(path, sizeof path, "/proc/%llu/status", (unsigned long long)pid);
    }
    return false;
}

/* The job's name by variables, all of which must be set. */
static bool name_by(char *name, const char *first, const char *second)
{
    const char *one = getenv(first), *other = second ? getenv(second) : "";
    if (one && *one && other)
        snprintf(name, JOB_NAME_BYTES, "%s %s %s", first, one, other);
    return one && *one && other;
}

/* The name of a job of one rank. */
static void name_alone(char *name)
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(name, JOB_NAME_BYTES, "alone %s %d %llu", host, (int)getpid(),
             (unsigned long long)clock_ns(CLOCK_REALTIME));
}

/* Names a job of torch.distributed by where its ranks meet, and torchrun's by how often it has
 * started them. */
static void name_torch_job(char *name, int size)
{
    const char *restarts = getenv("TORCHELASTIC_RESTART_COUNT");
    if (size == 1)
        name_alone(name);
    else if (!name_by(name, "MASTER_ADDR", "MASTER_PORT"))
        strcpy(name, UNNAMED);
    if (size > 1 && restarts)
        snprintf(name + strlen(name), JOB_NAME_BYTES - strlen(name), " %s", restarts);
}

/* Names a job of MPI, or says that it has no name. */
static void name_job(char *name, int size)
{
    handle written = 0;
    if (size == 1) {
        name_alone(name);
        return;
    }
    /* Open MPI gives one to a spawned job, too. */
    if (find("ompi_mpi_comm_world") && name_by(name, "PMIX_NAMESPACE", NULL))
        return;
    /* A spawned job has the names of the job that spawned it. */
    if (!mpi.session_world)
        mpi.comm_get_parent(&written);
    MPI_Comm parent = mpi.session_world ? abi.no_comm : handle_at(&written, 0);
    if (parent == abi.no_comm &&
        (name_by_hydra(name) || name_by(name, "I_MPI_HYDRA_UUID", NULL) ||
         name_by(name, "MPISPAWN_MPIRUN_ID", "MPISPAWN_MPIRUN_HOST") ||
         name_by(name, "PMIX_NAMESPACE", NULL) || name_by(name, "SLURM_JOB_ID", "SLURM_STEP_ID")))
        return;
    strcpy(name, parent == abi.no_comm ? UNNAMED : "");
}

/* The number under which this job is recorded, from 1; 0 where it has none. */
static int claim_number(const char *directory, const char *name)
{
    for (int number = 1; number <= MOST_JOBS; number++) {
        char link[4096], claimed[JOB_NAME_BYTES];
        snprintf(link, sizeof link, "%s/" JOB_LINK, directory, number);
        if (!symlink(name, link))
            return number;
        if (errno != EEXIST)
            return number == 1; /* whoever makes the files says what is wrong */
        ssize_t length = readlink(link, claimed, sizeof claimed);
        if (length == (ssize_t)strlen(name) && !memcmp(claimed, name, (size_t)length))
            return number;
    }
    return 0;
}

/* The folder of this job, which lasts; NULL after a line of rank 0 that says why there is none. */
static const char *find_job(const char *directory, const char *name, int rank, int size)
{
    char *folder = NULL;
    int number = *name ? claim_number(directory, name) : 0;
    if (!number && rank == 0)
        fprintf(stderr, "hvprof: a job of %d ranks is not recorded: %s\n", size,
                *name ? "the folder has no number left"
                      : "this MPI library does not distinguish spawned jobs");
    if (number <= 1)
        return number ? directory : NULL;
    if (asprintf(&folder, "%s/%d", directory, number) < 0)
        return NULL;
    mkdir(folder, 0755); /* another rank may have made it */
    return folder;
}

#endif
