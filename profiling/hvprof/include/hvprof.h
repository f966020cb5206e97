/* Regions and steps that a program in C or C++ marks for hvprof.
 *
 *     hvprof_region_begin("solver", HVPROF_COMPUTE);
 *     ...
 *     hvprof_region_end();
 *     hvprof_step();
 *
 * Regions lie within each other, and each thread has its own. In a process that is not recorded
 * these calls do nothing. Nothing is linked: the recorder is looked for when the program runs.
 */
#ifndef HVPROF_H
#define HVPROF_H

#include <dlfcn.h>
#include <stddef.h>

enum hvprof_kind { HVPROF_COMPUTE, HVPROF_COMMUNICATION, HVPROF_IO, HVPROF_OTHER };

struct hvprof_recorder {
    int asked;
    void (*region_begin)(const char *name, int kind);
    void (*region_end)(void);
    void (*step)(void);
};

/* Where `hvprof link --static` has linked the recorder with the program. */
extern const struct hvprof_recorder hvprof_linked_recorder __attribute__((weak));

static inline const struct hvprof_recorder *hvprof_recorder_of_process(void)
{
    static struct hvprof_recorder found;
    if (&hvprof_linked_recorder)
        return &hvprof_linked_recorder;
    if (!found.asked) {
        /* As the linker's handbook does it: C has no cast from an address to a function's. */
        void *process = dlopen(NULL, RTLD_LAZY);
        *(void **)&found.region_begin = dlsym(process, "hvprof_region_begin");
        *(void **)&found.region_end = dlsym(process, "hvprof_region_end");
        *(void **)&found.step = dlsym(process, "hvprof_step");
        found.asked = 1;
    }
    return &found;
}

/* This thread enters a part of the program. */
static inline void hvprof_region_begin(const char *name, enum hvprof_kind kind)
{
    const struct hvprof_recorder *recorder = hvprof_recorder_of_process();
    if (recorder->region_begin)
        recorder->region_begin(name, (int)kind);
}

/* It leaves the part that it entered last. */
static inline void hvprof_region_end(void)
{
    const struct hvprof_recorder *recorder = hvprof_recorder_of_process();
    if (recorder->region_end)
        recorder->region_end();
}

/* A step of the program, such as a time step, ends here, and the next begins. */
static inline void hvprof_step(void)
{
    const struct hvprof_recorder *recorder = hvprof_recorder_of_process();
    if (recorder->step)
        recorder->step();
}

#endif
