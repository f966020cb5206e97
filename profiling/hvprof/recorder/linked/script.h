/* The linker's script that goes with the recorder's object: cc -E -P makes it. What a library
 * lacks is 0; without that, the linker would not look for the rest of it, or would stop. */
#define SYMBOL(NAME) PROVIDE(NAME = 0);
#include "symbols.h"
