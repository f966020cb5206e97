/* The functions that programs call in place of MPI's, made of the tables of operations. */
#ifndef HVPROF_ENTRIES_H
#define HVPROF_ENTRIES_H

#include <ctype.h>

#include "../counting/sites.h"
#include "roles.h"

#define PARAMETERS                                                                             \
    uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g,        \
        uint64_t h, uint64_t i, uint64_t j, uint64_t k, uint64_t l, uint64_t m, uint64_t n,    \
        uint64_t o, uint64_t p
#define GIVEN                                                                                  \
    (uint64_t[WORDS])                                                                          \
    {                                                                                          \
        a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p                                         \
    }

static uint64_t call_with(void *function, const uint64_t *word)
{
    return ((uint64_t(*)(PARAMETERS))function)(word[0], word[1], word[2], word[3], word[4], word[5],
                                               word[6], word[7], word[8], word[9], word[10],
                                               word[11], word[12], word[13], word[14], word[15]);
}

/* Names of a binding's functions: the library's profiled ones, then what other libraries have
 * under the names that programs call. The first %s is the operation's. */
static const char *const PROFILED[BINDINGS][3] = {
    [C] = {"PMPI_%s"},
    [LARGE] = {"PMPI_%s_c"},
    [FORTRAN] = {"pmpi_%s_", "pmpi_%s__", "pmpi_%s"},
    [F08] = {"pmpi_%s_f08_", "pmpir_%s_f08_"},
    [F08TS] = {"pmpi_%s_f08ts_", "pmpir_%s_f08ts_"},
    [F08_LARGE] = {"pmpi_%s_f08_large_"},
    [F08TS_LARGE] = {"pmpi_%s_f08ts_large_"},
    [F08_C] = {"pmpi_%s_c_f08_", "pmpir_%s_c_f08_"},
    [F08TS_C] = {"pmpi_%s_c_f08ts_", "pmpir_%s_c_f08ts_"},
};

#ifndef LINKED_RECORDER
/* What the program would call without the recorder: it may have a function of its own of that
 * name, and some of MPICH's have no twin for profilers. */
static void *find_beyond(const char *symbol)
{
    struct link_map *library = NULL;
    Dl_info own, other;
    void *found = dlsym(RTLD_NEXT, symbol);
    dladdr((void *)find_beyond, &own);
    dlinfo(dlopen(NULL, RTLD_LAZY), RTLD_DI_LINKMAP, &library);
    for (; !found && library; library = library->l_next) {
        void *scope = dlopen(library->l_name, RTLD_LAZY | RTLD_NOLOAD);
        found = scope ? dlsym(scope, symbol) : NULL;
        if (found && dladdr(found, &other) && other.dli_fbase == own.dli_fbase)
            found = NULL;
        if (scope)
            dlclose(scope);
    }
    return found;
}
#endif

static void *find_function(const struct operation *operation, enum binding binding)
{
    char symbol[96] = "";
    void *found = NULL;
    bool is_c = binding == C || binding == LARGE;
    const char *name = is_c ? operation->symbol : operation->lower;
    for (int i = 0; !found && i < 3 && PROFILED[binding][i]; i++) {
        snprintf(symbol, sizeof symbol, PROFILED[binding][i], name);
        found = find(symbol);
    }
    for (int i = 0; !is_c && !found && i < 3 && PROFILED[binding][i]; i++) {
        snprintf(symbol, sizeof symbol, PROFILED[binding][i], name);
        found = find_beyond(symbol + 1);
    }
    if (!found && binding == FORTRAN) {
        snprintf(symbol, sizeof symbol, "PMPI_%s", name);
        for (char *letter = symbol; *letter; letter++)
            *letter = (char)toupper(*letter);
        found = find(symbol);
        found = found ? found : find_beyond(symbol + 1);
    }
    if (!found) {
        fprintf(stderr, "hvprof: error: the program's MPI has no %s, which the program calls\n",
                symbol);
        abort();
    }
    return found;
}

static void *function_of(struct operation *operation, enum binding binding)
{
    _Atomic(void *) *known = &operation->function[binding];
    void *function = atomic_load_explicit(known, memory_order_relaxed);
    if (!function)
        *known = function = find_function(operation, binding);
    return function;
}

/* Where on its stack this thread entered MPI. Some libraries' bindings of Fortran call C's
 * functions, and their files exchange messages by them: what is called within a call is the
 * library's. A place above the caller's was left behind by a jump out of MPI. */
static _Thread_local const char *entered;

/* The program asked for that (MPI_Pcontrol). */
static _Atomic bool left_out;

static bool is_within_mpi(const char *frame)
{
    return entered && frame < entered;
}

static uint64_t call_recorded(struct recorder *into, struct operation *operation,
                              enum binding binding, void *caller, uint64_t *word)
{
    struct calling call = {.into = into, .operation = operation, .binding = binding,
                           .caller = caller, .word = word, .polled_ns = polled_ns};
    polled_ns = 0;
    void *function = function_of(operation, binding);
    int fortrans_code = 0;
    uint64_t *code = NULL;
    if (is_fortran(&call) && operation->arguments) {
        code = &word[operation->arguments];
        if (!*code) /* `use mpi_f08` may leave it out */
            *code = (uintptr_t)&fortrans_code;
    }
    entered = __builtin_frame_address(0);
    call.begin_ns = clock_ns(CLOCK_MONOTONIC);
    operation->enter(&call);
    uint64_t result = call_with(function, word);
    call.end_ns = clock_ns(CLOCK_MONOTONIC);
    entered = NULL;
    bool succeeded = code ? *(const int *)(uintptr_t)*code == MPI_SUCCESS
                          : is_fortran(&call) || (int)result == MPI_SUCCESS;
    leave_call(into, call.end_ns, succeeded);
    if (succeeded) {
        operation->count(&call);
        count_at_site(into, id_of(into, operation), caller, call.end_ns - call.begin_ns);
    }
    return result;
}

static uint64_t call_operation(struct operation *operation, enum binding binding, void *caller,
                               uint64_t *word)
{
    struct recorder *into = recorder;
    if (!into || !mpi.found || atomic_load_explicit(&left_out, memory_order_relaxed) ||
        is_within_mpi(__builtin_frame_address(0)))
        return call_with(function_of(operation, binding), word);
    return call_recorded(into, operation, binding, caller, word);
}

#define ENTRY(SCOPE, SYMBOL, low, BINDING)                                                    \
    SCOPE uint64_t SYMBOL(PARAMETERS)                                                          \
    {                                                                                          \
        return call_operation(&of_##low, BINDING, CALLER, GIVEN);                             \
    }
#define ALSO(SYMBOL, OTHER_NAME)                                                               \
    EXPORT uint64_t SYMBOL(PARAMETERS) __attribute__((alias(#OTHER_NAME)));

/* Large counts, and functions that are in recent libraries only: a program that asks whether its
 * library has them is not to find the recorder's. They take their places later (late.h), unless the
 * recorder is linked. */
#ifdef LINKED_RECORDER
#define LARGE_ENTRY(Name, low) ENTRY(EXPORT, MPI_##Name##_c, low, LARGE)
#define RECENT_ENTRY(Name, low) EXPORT, MPI_##Name
#else
#define LARGE_ENTRY(Name, low) ENTRY(static, large_##low, low, LARGE)
#define RECENT_ENTRY(Name, low) static, recent_##low
#endif
#define WITH(MACRO, ...) MACRO(__VA_ARGS__)

#define ENTRIES(SCOPE, SYMBOL, Name, low, NAME, ...)                                          \
    static struct operation of_##low = {.symbol = #Name, .lower = #low, .name = #low,       \
                                         __VA_ARGS__};                                         \
    ENTRY(SCOPE, SYMBOL, low, C)                                                              \
    LARGE_ENTRY(Name, low)                                                                     \
    ENTRY(EXPORT, mpi_##low##_, low, FORTRAN)                                                \
    ALSO(mpi_##low##__, mpi_##low##_)                                                        \
    ALSO(mpi_##low, mpi_##low##_)                                                            \
    ALSO(MPI_##NAME, mpi_##low##_)                                                            \
    ENTRY(EXPORT, mpi_##low##_f08_, low, F08)                                                \
    ENTRY(EXPORT, mpi_##low##_f08ts_, low, F08TS)                                            \
    ENTRY(EXPORT, mpi_##low##_f08_large_, low, F08_LARGE)                                    \
    ENTRY(EXPORT, mpi_##low##_f08ts_large_, low, F08TS_LARGE)                                \
    ENTRY(EXPORT, mpi_##low##_c_f08_, low, F08_C)                                            \
    ENTRY(EXPORT, mpi_##low##_c_f08ts_, low, F08TS_C)

#define OPERATION(Name, ...) ENTRIES(EXPORT, MPI_##Name, Name, __VA_ARGS__)
#define RECENT(Name, low, ...) WITH(ENTRIES, RECENT_ENTRY(Name, low), Name, low, __VA_ARGS__)
#include "operations.h"
#include "others.h"
#undef OPERATION
#undef RECENT

#endif
