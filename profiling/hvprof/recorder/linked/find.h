/* The program's MPI where the recorder is linked with it, as in a static program: the linker's own
 * table of names is gone when the program runs, so this is one. */
#ifndef LINKED_RECORDER_FIND_H
#define LINKED_RECORDER_FIND_H

#include <stddef.h>
#include <string.h>

#define SYMBOL(NAME) extern char NAME[];
#include "symbols.h"
#undef SYMBOL

static const struct {
    const char *name;
    void *address; /* NULL: see script.h */
} symbols[] = {
#define SYMBOL(NAME) {#NAME, NAME},
#include "symbols.h"
#undef SYMBOL
};

static void *find(const char *symbol)
{
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (!strcmp(symbols[i].name, symbol))
            return symbols[i].address;
    return NULL;
}

/* Nothing but the recorder has the names that it takes. */
static void *find_beyond(const char *symbol)
{
    (void)symbol;
    return NULL;
}

#endif
