/* A kernel of the window, called alone. */
#include "kernels/forms.h"

void combine(int dtype, int operation, const char *const *in, int n_in, char *const *out, int n_out,
             uint64_t count, double scale) {
    KERNELS[dtype][operation](in, n_in, out, n_out, count, scale);
}
