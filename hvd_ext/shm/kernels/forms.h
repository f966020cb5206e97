/* Which form of the kernels is used: that of the widest vectors that the CPU has. */
#ifndef HVD_EXT_FORMS_H
#define HVD_EXT_FORMS_H

#include "kernels.h"

/* In the order of FORMS in kernels.py. */
enum form { SCALAR, AVX2, AVX512, FORMS };
enum { FLOAT16 = 2, BFLOAT16 = 3, OPERATIONS = 4 };

#if defined(__x86_64__) && defined(__gnu_linux__)
#include <cpuid.h>

#include "halves_x86.h"

static kernel *const HALVES[FORMS][2][OPERATIONS] = {
    {ROW(float16), ROW(bfloat16)},
    {ROW(float16_avx2), ROW(bfloat16_avx2)},
    {ROW(float16_avx512), ROW(bfloat16_avx512)},
};

static int has_form(int form) {
    unsigned a, b, c = 0, d;
    __builtin_cpu_init();
    if (form == AVX2)
        return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
    if (form == AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
    return form == SCALAR;
}
#else
static kernel *const HALVES[1][2][OPERATIONS] = {{ROW(float16), ROW(bfloat16)}};

static int has_form(int form) { return form == SCALAR; }
#endif

/* 1: from now on this form is used; 0: the CPU, or this build, does not have it. */
int kernels_use(int form) {
    if (!has_form(form)) return 0;
    memcpy(KERNELS[FLOAT16], HALVES[form], sizeof HALVES[form]);
    return 1;
}

__attribute__((constructor)) static void use_widest(void) {
    for (int form = FORMS - 1; !kernels_use(form); form--) continue;
}

#endif
