/* Functions that not every MPI library has: those with large counts, and those of MPI 4 and later.
 *
 * mpi4py asks whether the program has them, by weak symbols: the recorder must not be what it
 * finds. So these are not exported. Once MPI has started, the calls of each library that is loaded
 * are led to the recorder, by the addresses that the linker keeps for them, where MPI's has them.
 */
#ifndef HVPROF_LATE_H
#define HVPROF_LATE_H

#include <sys/mman.h>
#include <unistd.h>

#include "entries.h"

static _Atomic bool late_are_known; /* sorted; from then on beat.h leads calls */
static _Atomic bool leading; /* a thread leads calls */

#ifdef LINKED_RECORDER
static void find_late(void)
{
}

static void lead_calls(void)
{
}
#else

#if defined __x86_64__
enum { ADDRESS = 1, GLOBAL_DATA = 6, JUMP = 7 };
#elif defined __aarch64__
enum { ADDRESS = 257, GLOBAL_DATA = 1025, JUMP = 1026 };
#else
enum { ADDRESS = -1, GLOBAL_DATA = -1, JUMP = -1 };
#endif

/* In pmpi.c. */
static uint64_t recent_session_init(PARAMETERS);
static uint64_t recent_session_finalize(PARAMETERS);

static struct late {
    const char *symbol;
    uint64_t (*entry)(PARAMETERS);
    bool there; /* the library has it */
} late[] = {
#define OPERATION(Name, low, ...) {"MPI_" #Name "_c", large_##low, false},
#define RECENT(Name, low, ...)                                                                \
    {"MPI_" #Name "_c", large_##low, false}, {"MPI_" #Name, recent_##low, false},
#include "operations.h"
#include "others.h"
#undef OPERATION
#undef RECENT
    {"MPI_Session_init", recent_session_init, false},
    {"MPI_Session_finalize", recent_session_finalize, false},
};
enum { LATE_ENTRIES = sizeof late / sizeof *late };

static int by_symbol(const void *a, const void *b)
{
    return strcmp(((const struct late *)a)->symbol, ((const struct late *)b)->symbol);
}

struct loaded {
    const struct dl_phdr_info *library;
    const ElfW(Sym) *symbols;
    const char *names;
    ElfW(Addr) read_only, read_only_end; /* once the linker was done */
};

/* An address in a library's table, which some C libraries keep as an offset. */
static const void *placed(const struct loaded *in, ElfW(Addr) address)
{
    return (const void *)(address < in->library->dlpi_addr ? address + in->library->dlpi_addr
                                                           : address);
}

static void lead(const struct loaded *in, uintptr_t place, const struct late *to)
{
    _Atomic uintptr_t *slot = (_Atomic uintptr_t *)place;
    bool locked = place >= in->read_only && place < in->read_only_end;
    void *page = (void *)(place & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1));
    if (!*slot || *slot == (uintptr_t)to->entry)
        return;
    if (locked && mprotect(page, sizeof *slot, PROT_READ | PROT_WRITE))
        return;
    *slot = (uintptr_t)to->entry;
    if (locked)
        mprotect(page, sizeof *slot, PROT_READ);
}

static void lead_all(const struct loaded *in, const ElfW(Rela) *relocations, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *relocations; i++) {
        int kind = (int)ELF64_R_TYPE(relocations[i].r_info);
        struct late wanted = {0};
        if (kind != JUMP && kind != GLOBAL_DATA && kind != ADDRESS)
            continue;
        wanted.symbol = in->names + in->symbols[ELF64_R_SYM(relocations[i].r_info)].st_name;
        if (strncmp(wanted.symbol, "MPI_", 4))
            continue;
        const struct late *found = bsearch(&wanted, late, LATE_ENTRIES, sizeof *late, by_symbol);
        if (found && found->there)
            lead(in, in->library->dlpi_addr + relocations[i].r_offset, found);
    }
}

/* What there was when no library was being loaded. */
struct settled {
    unsigned long long loaded;
    const void *own; /* the recorder's base */
};

static int lead_library(struct dl_phdr_info *library, size_t size, void *data)
{
    const struct settled *settled = data;
    struct loaded in = {.library = library};
    const ElfW(Rela) *jumps = NULL, *others = NULL;
    const ElfW(Dyn) *dynamic = NULL;
    size_t jump_bytes = 0, other_bytes = 0;
    (void)size;
    /* The linker may not have placed one that came since, and would write over what is led. */
    if (library->dlpi_adds != settled->loaded)
        return 1;
    for (int i = 0; i < library->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &library->dlpi_phdr[i];
        ElfW(Addr) begin = library->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_DYNAMIC)
            dynamic = (const void *)begin;
        if (segment->p_type == PT_GNU_RELRO) {
            in.read_only = begin;
            in.read_only_end = begin + segment->p_memsz;
        }
    }
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        ElfW(Addr) value = dynamic->d_un.d_ptr;
        switch (dynamic->d_tag) {
        case DT_SYMTAB: in.symbols = placed(&in, value); break;
        case DT_STRTAB: in.names = placed(&in, value); break;
        case DT_JMPREL: jumps = placed(&in, value); break;
        case DT_PLTRELSZ: jump_bytes = value; break;
        case DT_RELA: others = placed(&in, value); break;
        case DT_RELASZ: other_bytes = value; break;
        }
    }
    if (!in.symbols || !in.names || settled->own == (void *)library->dlpi_addr)
        return 0;
    lead_all(&in, jumps, jumps ? jump_bytes : 0);
    lead_all(&in, others, others ? other_bytes : 0);
    return 0;
}

static int count_loaded(struct dl_phdr_info *library, size_t size, void *loaded)
{
    (void)size;
    *(unsigned long long *)loaded = library->dlpi_adds;
    return 1;
}

/* Of the libraries that are loaded now; asked again, only where there are new ones. Two threads
 * that unlock one page in turns would write to it locked. A thread in a dlopen must not wait. */
static void lead_calls(void)
{
    static unsigned long long before;
    struct settled settled = {0};
    Dl_info own;
    if (atomic_exchange(&leading, true))
        return;
    dl_iterate_phdr(count_loaded, &settled.loaded);
    if (settled.loaded != before) {
        /* dladdr waits until no dlopen is under way. Within dl_iterate_phdr it would wait for one
         * that waits for the list. */
        dladdr((void *)lead_library, &own);
        settled.own = own.dli_fbase;
        if (!dl_iterate_phdr(lead_library, &settled))
            before = settled.loaded;
    }
    atomic_store(&leading, false);
}

static void find_late(void)
{
    bool done = atomic_load(&late_are_known);
    Dl_info library = {0};
    char symbol[96];
    dladdr(find("PMPI_Comm_rank"), &library);
    void *scope = !done && library.dli_fname ? dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    for (int i = 0; scope && i < LATE_ENTRIES; i++) {
        snprintf(symbol, sizeof symbol, "P%s", late[i].symbol);
        late[i].there = dlsym(scope, symbol);
    }
    if (scope) {
        dlclose(scope);
        qsort(late, LATE_ENTRIES, sizeof *late, by_symbol);
        atomic_store(&late_are_known, true);
    }
    if (atomic_load(&late_are_known))
        lead_calls();
}

#endif
#endif
