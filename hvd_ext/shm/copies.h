/* Many short copies by one call from Python, which is as long as a hundred of them. */
#ifndef HVD_EXT_COPIES_H
#define HVD_EXT_COPIES_H

#include <stdint.h>
#include <string.h>

/* As memcpy, which takes no null pointer even for no bytes: an empty tensor has no address. */
static inline void copy_bytes(void *into, const void *from, uint64_t bytes) {
    if (bytes) memcpy(into, from, bytes);
}

enum { COPIES_AHEAD = 4, LANES = 4 };

void copy_each(char *const *into, const char *const *from, const uint64_t *bytes, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (i + COPIES_AHEAD < n) __builtin_prefetch(from[i + COPIES_AHEAD]);
        memcpy(into[i], from[i], bytes[i]);
    }
}

__extension__ typedef unsigned __int128 product;

static uint64_t mixed(uint64_t into, uint64_t word) {
    /* The lower half alone would lose most of what the word's highest bits say. */
    const product both = (product)(into ^ word) * 0x9e3779b97f4a7c15u;
    return (uint64_t)both ^ (uint64_t)(both >> 64);
}

/* A hash of some bytes. A change of the bytes goes unnoticed with a probability of 2^-64. */
static uint64_t digest(const char *from, uint64_t bytes) {
    uint64_t lanes[LANES] = {1, 2, 3, 4}; /* independent, so that multiplications overlap */
    while (bytes > 0) {
        uint64_t words[LANES] = {0};
        const uint64_t taken = bytes < sizeof words ? bytes : sizeof words;
        memcpy(words, from, taken);
        for (int k = 0; k < LANES; k++) lanes[k] = mixed(lanes[k], words[k]);
        from += taken;
        bytes -= taken;
    }
    uint64_t all = 0;
    for (int k = 0; k < LANES; k++) all = mixed(all, lanes[k]);
    return all;
}

void digest_each(const char *const *from, const uint64_t *bytes, uint64_t n, uint64_t *into) {
    for (uint64_t i = 0; i < n; i++) {
        if (i + COPIES_AHEAD < n) __builtin_prefetch(from[i + COPIES_AHEAD]);
        into[i] = digest(from[i], bytes[i]);
    }
}

#endif
