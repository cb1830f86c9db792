// Software emulation of the matrix unit (AMX) and of bfloat16 dot products, for tests and development on processors
// that lack them.
//
// Enabled only by SEQUOIA_INSTRUCTIONS=amx-emulated or avx512-bf16-emulated: the compiler then includes this file
// first, and the functions below replace the intrinsics. The processor must have AVX-512 (F, BW, VL, DQ).
//
// The arithmetic follows Intel's manual (TDPBF16PS, VDPBF16PS, VCVTNEPS2BF16): products are accumulated by fused
// multiply-add; the first and the second entries of the pairs are summed separately, and both sums are added together
// and then to the tile; results are rounded to nearest even, and denormals are treated as 0. Unconfigured tiles and
// mismatched sizes abort the process, as they do on the unit. The emulation reveals neither the unit's speed nor stores
// that a compiler moves past a tile instruction.

#ifndef SEQUOIA_AMX_EMULATION_H
#define SEQUOIA_AMX_EMULATION_H

#include <immintrin.h>  // must precede the macros below, which replace its declarations
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    struct {  // the layout of `_tile_loadconfig`
        uint8_t palette, start, zero[14];
        uint16_t width[16];  // bytes per row
        uint8_t rows[16];
    } config;
    uint32_t words[8][16][16] __attribute__((aligned(64)));  // [tile][row][column]: float32 or bfloat16 pair, low first
} EmulatedUnit;

// One per thread, as on a processor; a weak symbol, so that all C files of a library share it.
__attribute__((weak, visibility("hidden"))) __thread EmulatedUnit emulated_unit;

static inline void emulated_check(int fine, const char *what, int tile) {
    if (__builtin_expect(fine, 1)) return;
    dprintf(2, "amx_emulation: tile %d: %s\n", tile, what);
    __builtin_trap();
}

static inline void emulated_release(void) { memset(&emulated_unit, 0, sizeof emulated_unit); }

static inline void emulated_loadconfig(const void *config) {
    emulated_release();
    memcpy(&emulated_unit.config, config, sizeof emulated_unit.config);
    for (int tile = 0; tile < 8; tile++) {
        const int rows = emulated_unit.config.rows[tile], width = emulated_unit.config.width[tile];
        emulated_check(rows <= 16 && width <= 64 && width % 4 == 0, "more than 16 rows of 64 bytes, or broken words", tile);
    }
}

static inline __mmask16 emulated_columns(const EmulatedUnit *unit, int tile) {  // the columns of a tile
    emulated_check(unit->config.palette == 1 && unit->config.rows[tile] && unit->config.width[tile], "not configured", tile);
    return (__mmask16)((1u << unit->config.width[tile] / 4) - 1);
}

static inline void emulated_zero(int tile) {
    emulated_columns(&emulated_unit, tile);
    memset(emulated_unit.words[tile], 0, sizeof emulated_unit.words[tile]);
}

static inline void emulated_loadd(int tile, const void *from, int64_t stride) {
    EmulatedUnit *unit = &emulated_unit;
    const __mmask16 columns = emulated_columns(unit, tile);
    for (int row = 0; row < 16; row++) {  // entries beyond the tile's size are 0
        const __mmask16 some = row < unit->config.rows[tile] ? columns : 0;
        _mm512_store_si512(unit->words[tile][row], _mm512_maskz_loadu_epi32(some, (const char *)from + row * stride));
    }
}

static inline void emulated_stored(int tile, void *to, int64_t stride) {
    const EmulatedUnit *unit = &emulated_unit;
    const __mmask16 columns = emulated_columns(unit, tile);
    for (int row = 0; row < unit->config.rows[tile]; row++)
        _mm512_mask_storeu_epi32((char *)to + row * stride, columns, _mm512_load_si512(unit->words[tile][row]));
}

// sum [m, n] += left [m, 2 k] right [2 k, n], whose rows are interleaved in pairs: [k, n, 2].
static inline void emulated_dpbf16ps(int sum, int left, int right) {
    EmulatedUnit *unit = &emulated_unit;
    const __mmask16 columns = emulated_columns(unit, sum);
    const int rows = unit->config.rows[sum], pairs = unit->config.rows[right];
    emulated_check(emulated_columns(unit, left) == (1u << pairs) - 1 && emulated_columns(unit, right) == columns &&
                       unit->config.rows[left] == rows && sum != left && sum != right && left != right,
                   "its size does not match its factors, or one tile is used twice", sum);
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    __m512 first[16], second[16];  // entries of each pair, as float32
    for (int k = 0; k < pairs; k++) {
        const __m512i both = _mm512_load_si512(unit->words[right][k]);
        first[k] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        second[k] = _mm512_castsi512_ps(_mm512_and_epi32(both, high));
    }
    const unsigned control = _mm_getcsr();
    _mm_setcsr(0x9fc0);  // fixed settings, as on the unit: nearest even, no denormals, no exceptions
    __asm__ volatile("" ::: "memory");
    for (int row = 0; row < rows; row++) {
        __m512 one = _mm512_setzero_ps(), other = _mm512_setzero_ps();
        for (int k = 0; k < pairs; k++) {
            const uint32_t both = unit->words[left][row][k];
            one = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32((int)(both << 16))), first[k], one);
            other = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32((int)(both & 0xffff0000))), second[k], other);
        }
        uint32_t *to = unit->words[sum][row];
        _mm512_mask_storeu_ps(to, columns, _mm512_add_ps(_mm512_load_ps(to), _mm512_add_ps(one, other)));
    }
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(control);
}

static inline __m256i emulated_cvtneps_pbh(__m512 x) {  // in integer arithmetic, which ignores the thread's settings
    const __m512i bits = _mm512_castps_si512(x), size = _mm512_and_epi32(bits, _mm512_set1_epi32(0x7fffffff));
    const __m512i high = _mm512_srli_epi32(bits, 16), odd = _mm512_and_epi32(high, _mm512_set1_epi32(1));
    __m512i found = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 tiny = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x00800000));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(size, _mm512_set1_epi32(0x7f800000));
    found = _mm512_mask_and_epi32(found, tiny, high, _mm512_set1_epi32(0x8000));  // only the sign remains
    found = _mm512_mask_or_epi32(found, nan, high, _mm512_set1_epi32(0x0040));    // quiet NaN
    return _mm512_cvtepi32_epi16(found);
}

static inline __m512 emulated_dot(__m512 sum, __m512i left, __m512i right) {  // adds the second entries first
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    const unsigned control = _mm_getcsr();
    _mm_setcsr(0x9fc0);
    __asm__ volatile("" ::: "memory");
    sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_epi32(left, high)),
                          _mm512_castsi512_ps(_mm512_and_epi32(right, high)), sum);
    sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(left, 16)),
                          _mm512_castsi512_ps(_mm512_slli_epi32(right, 16)), sum);
    __asm__ volatile("" : "+v"(sum) : : "memory");
    _mm_setcsr(control);
    return sum;
}

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated_loadconfig
#define _tile_release emulated_release
#define _tile_zero emulated_zero
#define _tile_loadd emulated_loadd
#define _tile_stream_loadd emulated_loadd
#define _tile_stored emulated_stored
#define _tile_dpbf16ps emulated_dpbf16ps
#define _mm512_cvtneps_pbh emulated_cvtneps_pbh
#define _mm512_dpbf16_ps(sum, left, right) emulated_dot(sum, (__m512i)(left), (__m512i)(right))
#define syscall(number, ...) ((number) == SYS_arch_prctl ? 0L : syscall(number, __VA_ARGS__))  // always grants the unit

#endif
