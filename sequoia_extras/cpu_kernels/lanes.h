// Vectors of 16 numbers, and the memory layout shared by llama_x86.c and the products of each instruction set.
//
// The vectors use extensions of GCC and Clang, so this code is the same for every processor; only the products have a
// separate file for each instruction set: products_amx.h, products_avx512.h, products_avx2.h.

#ifndef SEQUOIA_LANES_H
#define SEQUOIA_LANES_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;
typedef float floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t shorts __attribute__((vector_size(32), aligned(2), may_alias));

// A weight tile has 512 entries, 32 along K by 16 columns: [16 pairs along K][16 columns][2]. An activation tile has 16
// rows by 32 entries along K. Weights are stored in groups of two adjacent tiles, which have 32 columns.
enum { LANES = 16, TILE = 512, ROWS = 16, DEEP = 32, GROUP = 2, WIDE = 32, LARGEST_HEAD = 256 };

static inline floats load(const float *from) { return *(const floats *)from; }

static inline void store(float *to, floats x) { *(floats *)to = x; }

static inline floats fill(float x) { return x - (floats){0}; }

static inline floats pick(ints mask, floats yes, floats no) { return (floats)((mask & (ints)yes) | (~mask & (ints)no)); }

static inline floats widen(const bf16 *x) {
    return (floats)(__builtin_convertvector(*(const shorts *)x, ints) << 16);
}

#ifdef WITH_BFLOAT16
static inline void narrow(bf16 *to, floats x) { _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)x)); }
#else
static inline void narrow(bf16 *to, floats x) {  // rounds to nearest even; NaN stays NaN
    const ints bits = (ints)x, high = (bits >> 16) & 0xffff;
    const ints rounded = ((bits + 0x7fff + (high & 1)) >> 16) & 0xffff, none = (ints)((bits & 0x7fffffff) > 0x7f800000);
    *(shorts *)to = __builtin_convertvector((none & (high | 0x40)) | (~none & rounded), shorts);
}
#endif

static inline float total(floats x) {
    float lanes[LANES];
    store(lanes, x);
    for (int step = LANES / 2; step; step /= 2)
        for (int i = 0; i < step; i++) lanes[i] += lanes[i + step];
    return lanes[0];
}

static inline float largest(floats x) {
    float lanes[LANES];
    store(lanes, x);
    for (int step = LANES / 2; step; step /= 2)
        for (int i = 0; i < step; i++) lanes[i] = lanes[i] > lanes[i + step] ? lanes[i] : lanes[i + step];
    return lanes[0];
}

static inline floats exponential(floats x) {  // for x <= 0: relative error below 2e-7, at least 1e-30; NaN for NaN
    const floats low = fill(-69.0f), safe = pick(x < low, low, x);
    const ints n = __builtin_convertvector(pick(x != x, fill(0.0f), safe) * 1.44269504f - 0.5f, ints);
    const floats whole = __builtin_convertvector(n, floats), r = safe - whole * 0.693359375f + whole * 2.12194440e-4f;
    floats y = 1.9875691500e-4f * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    return y * (floats)((n + 127) << 23);
}

// Return the offset of entry (row, column) of activations [rows, k]: [row / 16][k / 32][16][32].
static inline size_t place(int row, int column, int k) {
    return ((size_t)(row / ROWS) * (k / DEEP) + column / DEEP) * TILE + row % ROWS * DEEP + column % DEEP;
}

// Return the offset of 16 entries of a slot's value, which are interleaved with those of the paired slot.
static inline size_t value_pair(int slot, int part, int size) {
    return ((size_t)(slot / DEEP) * (size / 16) + part) * TILE + slot % DEEP / 2 * 32;
}

#endif
