// Products with tiled weights on the matrix unit (AMX), which takes two bfloat16 operands.

#include <sys/syscall.h>
#include <unistd.h>

#include "lanes.h"

#define WITH_TILES  // for linear.c

enum { BATCH = 32 };  // rows per call of `product`

typedef bf16 activation;

static inline void keep_activation(activation *to, floats x) { narrow(to, x); }

// Compilers do not know that tile instructions read memory, so earlier stores must be completed. (In older compilers,
// these are macros whose arguments need parentheses.)
static inline void settle(void) { __asm__ volatile("" ::: "memory"); }

static int granted(void) { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }  // requests the unit's registers from the system

static void begin_products(void) {
    struct {
        uint8_t palette, start, zero[14];
        uint16_t width[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) config.width[i] = 64, config.rows[i] = ROWS;
    settle();
    _tile_loadconfig(&config);
}

static void end_products(void) { _tile_release(); }

// c [16, 32] = a [16, k] times the 32 columns of one group; bound by reading the weights, which the hardware
// prefetches.
static void multiply_one(float *c, const bf16 *a, const bf16 *tiles, int k) {
    settle();
    _tile_zero(0);
    _tile_zero(1);
    for (int step = 0; step < k / DEEP; step++, tiles += GROUP * TILE, a += TILE) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, tiles, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, (tiles + TILE), 64);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, c, WIDE * 4);
    _tile_stored(1, (c + 16), WIDE * 4);
}

// c [32, 32] = a [32, k] times the same columns. Reading and multiplying take equally long here: the weights bypass the
// L1 cache, where `a` stays, and every step prefetches `lines` cache lines of `ahead` into the L2 cache.
static void multiply_two(float *c, const bf16 *a, const bf16 *tiles, int k, const bf16 *ahead, int lines) {
    const int steps = k / DEEP;
    settle();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int step = 0; step < steps; step++, tiles += GROUP * TILE, a += TILE) {
        for (int i = 0; i < lines; i++, ahead += 32) _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        _tile_loadd(4, a, 64);
        _tile_stream_loadd(6, tiles, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_stream_loadd(7, (tiles + TILE), 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, (a + (size_t)steps * TILE), 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, WIDE * 4);
    _tile_stored(1, (c + 16), WIDE * 4);
    _tile_stored(2, (c + ROWS * WIDE), WIDE * 4);
    _tile_stored(3, (c + ROWS * WIDE + 16), WIDE * 4);
}

// c [up to 32 rows, 32] = tiled a times the 32 columns of one group.
static void product(float *c, const bf16 *a, int rows, const bf16 *tiles, int k, const bf16 *ahead, int lines) {
    if (rows > ROWS) {
        multiply_two(c, a, tiles, k, ahead, lines);
        return;
    }
    multiply_one(c, a, tiles, k);
    for (int i = 0; i < 128 && rows > 2; i++)  // prefetches weights while many results are written
        _mm_prefetch((const char *)(ahead + 32 * i), _MM_HINT_T1);
}

// scores [16, stride] = tiled queries [16, d] times all keys, 32 keys at a time.
static void score(float *scores, int stride, const bf16 *queries, int rows, const bf16 *keys, int blocks, int size) {
    (void)rows;
    settle();
    for (int block = 0; block < blocks; block++, keys += (size_t)2 * ROWS * size) {
        _tile_zero(0);
        _tile_zero(1);
        for (int i = 0; i < size / DEEP; i++) {
            _tile_loadd(4, (queries + i * TILE), 64);
            _tile_loadd(5, (keys + i * TILE), 64);
            _tile_dpbf16ps(0, 4, 5);
            _tile_loadd(6, (keys + ROWS * size + i * TILE), 64);
            _tile_dpbf16ps(1, 4, 6);
        }
        _tile_stored(0, (scores + block * DEEP), stride * 4);
        _tile_stored(1, (scores + block * DEEP + ROWS), stride * 4);
    }
}

// sums [16, d] = tiled weights [16, 32 per block] times values: 32 keys and 32 or 64 entries of the head at a time.
static void weigh(float *sums, const bf16 *weights, int rows, const bf16 *values, int blocks, int size) {
    (void)rows;
    settle();
    for (int part = 0; part < size / 16; part += 4) {
        const int four = size / 16 - part > 2;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int block = 0; block < blocks; block++) {
            const bf16 *tile = values + ((size_t)block * (size / 16) + part) * TILE;
            _tile_loadd(4, (weights + block * TILE), 64);
            _tile_loadd(5, tile, 64);
            _tile_dpbf16ps(0, 4, 5);
            _tile_loadd(6, (tile + TILE), 64);
            _tile_dpbf16ps(1, 4, 6);
            if (!four) continue;
            _tile_loadd(7, (tile + 2 * TILE), 64);
            _tile_dpbf16ps(2, 4, 7);
            _tile_loadd(5, (tile + 3 * TILE), 64);
            _tile_dpbf16ps(3, 4, 5);
        }
        _tile_stored(0, (sums + part * 16), size * 4);
        _tile_stored(1, (sums + part * 16 + 16), size * 4);
        if (!four) continue;
        _tile_stored(2, (sums + part * 16 + 32), size * 4);
        _tile_stored(3, (sums + part * 16 + 48), size * 4);
    }
}

// Add the weighted values of at most 32 `slots` to sum [d], in the order of the matrix unit: the first keys and the
// second keys of the pairs separately, then both to the sum. The products are exact, so only this order matters.
static void weigh_some(float *sum, const bf16 *weights, const bf16 *values, const int32_t *slots, int count, int size) {
    for (int part = 0; part < size / 16; part++) {
        __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int i = 0; i < count; i++) {
            __m512i pair = _mm512_loadu_si512(values + value_pair(slots[i], part, size));
            pair = slots[i] % 2 ? _mm512_and_epi32(pair, _mm512_set1_epi32((int)0xffff0000)) : _mm512_slli_epi32(pair, 16);
            const __m512 weight = _mm512_castsi512_ps(_mm512_set1_epi32((int)((uint32_t)weights[i] << 16)));
            sums[i % 2] = _mm512_fmadd_ps(weight, _mm512_castsi512_ps(pair), sums[i % 2]);
        }
        float *to = sum + part * 16;
        _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), _mm512_add_ps(sums[0], sums[1])));
    }
}
