/* The line of Python that called an extension module, such as mpi4py's, which called MPI.
 *
 * Modules release the GIL around MPI, so most calls cannot ask the interpreter. A thread's own frames
 * do not change while it is in a call, though: which instruction it is at is read from them, for
 * the versions of Python whose layout is known here. That alone finds the site of a call again. The
 * line of an instruction that is seen for the first time is asked of the interpreter, with the
 * GIL: mpi4py takes it next anyway, so it cannot block where mpi4py would not. */
#ifndef HVPROF_PYTHON_H
#define HVPROF_PYTHON_H

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../mpi/library.h"
#include "../recorder.h"

struct source_line {
    char path[OBJECT_BYTES];
    uint64_t offset; /* in a library or executable */
    uint32_t line;   /* in a file of Python */
};

/* A module that takes the GIL when its call has ended, or one that may do more without it. */
enum extension { NO_EXTENSION, TAKES_GIL, MAY_KEEP_RELEASED };

#ifdef LINKED_RECORDER
static enum extension extension_in(const char *path)
{
    (void)path;
    return NO_EXTENSION;
}

static bool find_instruction(uint64_t *code, uint64_t *instruction)
{
    (void)code, (void)instruction;
    return false;
}

static bool find_line(uint32_t extension, uint64_t code, struct source_line *where)
{
    (void)extension, (void)code, (void)where;
    return false;
}
#else
/* Offsets in bytes: of the frame in a thread's state or, with `via`, in what that points to; of
 * the code object and the next instruction in the frame. */
static const struct layout {
    char version[8];
    uint8_t via, frame, code, instruction, instruction_bytes;
} LAYOUTS[] = {
    {"3.10.", 0, 24, 32, 96, 4},
    {"3.11.", 56, 8, 32, 56, 8},
    {"3.12.", 56, 0, 0, 56, 8},
    {"3.13.", 0, 72, 0, 56, 8},
};

#define PYTHON_FUNCTIONS(X)                                                                    \
    X(const char *, Py_GetVersion, (void))                                                     \
    X(void *, PyGILState_GetThisThreadState, (void))                                           \
    X(int, PyGILState_Check, (void))                                                           \
    X(int, PyGILState_Ensure, (void))                                                          \
    X(void, PyGILState_Release, (int))                                                         \
    X(void *, PyEval_GetFrame, (void))                                                         \
    X(void *, PyFrame_GetCode, (void *))                                                       \
    X(int, PyFrame_GetLineNumber, (void *))                                                    \
    X(void *, PyObject_GetAttrString, (void *, const char *))                                  \
    X(const char *, PyUnicode_AsUTF8, (void *))                                                \
    X(void, PyErr_Fetch, (void **, void **, void **))                                          \
    X(void, PyErr_Restore, (void *, void *, void *))                                           \
    X(void, Py_DecRef, (void *))

/* Whether the layout is known, was seen to be right, or was wrong. */
enum trust { NOT_ASKED, UNTRIED, TRUSTED, REFUSED };

static struct {
#define DECLARE(RESULT, name, PARAMETERS) RESULT(*name) PARAMETERS;
    PYTHON_FUNCTIONS(DECLARE)
#undef DECLARE
    const struct layout *layout;
    _Atomic int trust;
    pthread_mutex_t asking;
} python = {.asking = PTHREAD_MUTEX_INITIALIZER};

static enum trust find_python(void)
{
    bool found = true;
#define FIND(RESULT, name, PARAMETERS)                                                         \
    found = found && (python.name = (RESULT(*) PARAMETERS)find(#name));
    PYTHON_FUNCTIONS(FIND)
#undef FIND
    const char *version = found ? python.Py_GetVersion() : "";
    for (unsigned i = 0; i < sizeof LAYOUTS / sizeof *LAYOUTS; i++)
        if (!strncmp(version, LAYOUTS[i].version, strlen(LAYOUTS[i].version)) &&
            !strstr(version, "free-threading"))
            python.layout = &LAYOUTS[i];
    return python.layout ? UNTRIED : REFUSED;
}

/* Of a library by its path: a module, by the endings that Python gives them. */
static enum extension extension_in(const char *path)
{
    const char *name = strrchr(path, '/');
    if (!name || !(strstr(name, ".cpython-") || strstr(name, ".abi3.")))
        return NO_EXTENSION;
    pthread_mutex_lock(&python.asking);
    if (python.trust == NOT_ASKED)
        python.trust = find_python();
    pthread_mutex_unlock(&python.asking);
    if (python.trust == REFUSED)
        return NO_EXTENSION;
    return strstr(path, "/mpi4py/") ? TAKES_GIL : MAY_KEEP_RELEASED;
}

/* `bytes` at an address. Until the layout is trusted it may be none: the kernel then says so, and
 * no other is tried. */
static uint64_t word_at(uint64_t at, unsigned bytes)
{
    uint64_t word = 0;
    if (python.trust == TRUSTED) {
        memcpy(&word, (const void *)(uintptr_t)at, bytes);
        return word;
    }
    struct iovec here = {&word, bytes}, there = {(void *)(uintptr_t)at, bytes};
    if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)bytes)
        return word;
    python.trust = REFUSED;
    return 0;
}

/* Where this thread is in its code of Python; false where it runs none, or that is not known. */
static bool find_instruction(uint64_t *code, uint64_t *instruction)
{
    const struct layout *layout = python.layout;
    if (python.trust == REFUSED)
        return false;
    uint64_t state = (uintptr_t)python.PyGILState_GetThisThreadState();
    if (state && layout->via)
        state = word_at(state + layout->via, 8);
    uint64_t frame = state ? word_at(state + layout->frame, 8) : 0;
    if (!frame)
        return false;
    *code = word_at(frame + layout->code, 8);
    *instruction = word_at(frame + layout->instruction, layout->instruction_bytes);
    return *code != 0;
}

static bool ask_for_line(uint64_t code, struct source_line *where)
{
    void *type, *value, *traceback, *name = NULL, *frame = python.PyEval_GetFrame();
    python.PyErr_Fetch(&type, &value, &traceback);
    void *found = frame ? python.PyFrame_GetCode(frame) : NULL;
    bool known = (uintptr_t)found == code;
    if (found)
        python.trust = known ? TRUSTED : REFUSED;
    if (known)
        name = python.PyObject_GetAttrString(found, "co_filename");
    const char *path = name ? python.PyUnicode_AsUTF8(name) : NULL;
    if (path) {
        strncpy(where->path, path, sizeof where->path - 1);
        where->line = (uint32_t)python.PyFrame_GetLineNumber(frame);
    }
    python.Py_DecRef(name);
    python.Py_DecRef(found);
    python.PyErr_Restore(type, value, traceback);
    return path && where->line;
}

/* The line that this thread is at, of an instruction of `code`. */
static bool find_line(uint32_t extension, uint64_t code, struct source_line *where)
{
    if (extension == MAY_KEEP_RELEASED && !python.PyGILState_Check())
        return false;
    int held = python.PyGILState_Ensure();
    bool known = ask_for_line(code, where);
    python.PyGILState_Release(held);
    return known;
}
#endif

#endif
