// A bfloat16 linear layer for any model: out = x W^T + bias, where W [n, k] is row-major in PyTorch's memory.
//
// With few rows of x, the time is that of reading W once, so W is not copied into tiles. Whatever the number of rows,
// every entry is summed along k in the same order and over lanes in the same tree, so a token's result is the same in
// any batch.

#include <omp.h>
#include <stdlib.h>

#include PRODUCTS

enum { COLUMNS = 16 };  // rows of W per block

static inline void write_row(void *out, size_t at, floats sums, const float *bias, int single) {
    if (bias) sums += load(bias);
    if (single)
        store((float *)out + at, sums);
    else
        narrow((bf16 *)out + at, sums);
}

#ifdef WITH_TILES
enum { MOST_TILES = 4 };  // 16-row tiles of x that are multiplied by one tile of W

// x [rows, k] -> [rows / 16][k / 32][16 pairs along k][16 rows][2]; padding rows are zero.
static void lay_out(activation *to, const bf16 *x, int rows, int k) {
    const int32_t *from = (const int32_t *)x;
    for (int first = 0; first < rows; first += ROWS)
        for (int pair = 0; pair < k / 2; pair++, to += 2 * ROWS)
            for (int row = 0; row < ROWS; row++) {
                const int32_t both = first + row < rows ? from[(size_t)(first + row) * (k / 2) + pair] : 0;
                memcpy(to + 2 * row, &both, sizeof both);
            }
}

static inline size_t laid_out_size(int rows, int k) { return (size_t)(rows + ROWS - 1) / ROWS * ROWS * k; }

// Multiply blocks of up to MOST_TILES tiles of x by the rows of W at `w`; the sums of a tile are [16 columns][16 rows].
static void block(const bf16 *w, const activation *x, int rows, int k, int column, int n, const float *bias, void *out,
                  int single) {
    float c[MOST_TILES][COLUMNS * ROWS] __attribute__((aligned(64)));
    for (int first = 0; first < rows; first += MOST_TILES * ROWS) {
        const int left = rows - first < MOST_TILES * ROWS ? rows - first : MOST_TILES * ROWS;
        const int tiles = (left + ROWS - 1) / ROWS;
        const activation *some = x + (size_t)first * k;
        const size_t next = (size_t)ROWS * k;
        settle();
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int at = 0; at < k; at += DEEP, some += TILE) {
            if (!first)
                for (int row = 0; row < COLUMNS; row++)
                    _mm_prefetch((const char *)(w + (size_t)COLUMNS * (k + at) + row * DEEP), _MM_HINT_T1);
            _tile_loadd(4, (w + at), (size_t)k * sizeof(bf16));
            _tile_loadd(5, some, 64);
            _tile_dpbf16ps(0, 4, 5);
            if (tiles < 2) continue;
            _tile_loadd(6, (some + next), 64);
            _tile_dpbf16ps(1, 4, 6);
            if (tiles < 3) continue;
            _tile_loadd(7, (some + 2 * next), 64);
            _tile_dpbf16ps(2, 4, 7);
            if (tiles < 4) continue;
            _tile_loadd(5, (some + 3 * next), 64);
            _tile_dpbf16ps(3, 4, 5);
        }
        _tile_stored(0, c[0], 64);
        _tile_stored(1, c[1], 64);
        _tile_stored(2, c[2], 64);
        _tile_stored(3, c[3], 64);
        settle();
        for (int row = 0; row < left; row++) {
            float line[COLUMNS];
            for (int i = 0; i < COLUMNS; i++) line[i] = c[row / ROWS][i * ROWS + row % ROWS];
            write_row(out, (size_t)(first + row) * n + column, load(line), bias, single);
        }
    }
}

#else

#ifdef __AVX512F__
typedef __m512 sum_vector;
enum { SUMS = 16 };  // sums held in registers
#else
typedef __m256 sum_vector;
enum { SUMS = 8 };
#endif
enum { STEP = 2 * SUMS };  // entries along k in one vector of W

#ifdef WITH_BFLOAT16
static void lay_out(activation *to, const bf16 *x, int rows, int k) { memcpy(to, x, (size_t)rows * k * sizeof(bf16)); }

static inline sum_vector add_step(sum_vector sum, const activation *x, Weights w) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_loadu_si512(x), (__m512bh)w);
}
#else
// For each step along k: the even entries, then the odd ones, as float32.
static void lay_out(activation *to, const bf16 *x, int rows, int k) {
    for (size_t step = 0; step < (size_t)rows * k; step += STEP)
        for (int i = 0; i < STEP; i++) {
            const uint32_t bits = (uint32_t)x[step + i] << 16;
            memcpy(to + step + i % 2 * SUMS + i / 2, &bits, sizeof bits);
        }
}

static inline sum_vector add_step(sum_vector sum, const activation *x, Weights w) {
#ifdef __AVX512F__
    return _mm512_fmadd_ps(_mm512_loadu_ps(x + SUMS), w.odd, _mm512_fmadd_ps(_mm512_loadu_ps(x), w.even, sum));
#else
    return _mm256_fmadd_ps(_mm256_loadu_ps(x + SUMS), w.odd, _mm256_fmadd_ps(_mm256_loadu_ps(x), w.even, sum));
#endif
}
#endif

static inline size_t laid_out_size(int rows, int k) { return (size_t)rows * k; }

// Sum the lanes of each of SUMS vectors.
#ifdef __AVX512F__
static inline void totals(float *to, __m512 *s) {
    for (int i = 0; i < 8; i++)
        s[i] = _mm512_add_ps(_mm512_unpacklo_ps(s[2 * i], s[2 * i + 1]), _mm512_unpackhi_ps(s[2 * i], s[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(s[2 * i]), b = _mm512_castps_pd(s[2 * i + 1]);
        s[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    for (int i = 0; i < 2; i++)
        s[i] = _mm512_add_ps(_mm512_shuffle_f32x4(s[2 * i], s[2 * i + 1], 0x44),
                             _mm512_shuffle_f32x4(s[2 * i], s[2 * i + 1], 0xee));
    _mm512_storeu_ps(to, _mm512_add_ps(_mm512_shuffle_f32x4(s[0], s[1], 0x88), _mm512_shuffle_f32x4(s[0], s[1], 0xdd)));
}
#else
static inline void totals(float *to, __m256 *s) {
    for (int i = 0; i < 2; i++)
        s[i] = _mm256_hadd_ps(_mm256_hadd_ps(s[4 * i], s[4 * i + 1]), _mm256_hadd_ps(s[4 * i + 2], s[4 * i + 3]));
    _mm256_storeu_ps(to, _mm256_add_ps(_mm256_permute2f128_ps(s[0], s[1], 0x20), _mm256_permute2f128_ps(s[0], s[1], 0x31)));
}
#endif

// Multiply C rows of W by R rows of x, where C R = SUMS; `c` is [rows][16]. `fetch`: whether to prefetch the next block
// into the L2 cache, in memory order.
static inline __attribute__((always_inline)) void dots(const int C, const int R, float *c, const bf16 *w,
                                                       const activation *x, int k, int fetch) {
    sum_vector sums[SUMS];
    float line[SUMS];
    _Pragma("GCC unroll 16") for (int i = 0; i < SUMS; i++) sums[i] = (sum_vector){0};
    for (int at = 0; at < k; at += STEP) {
        Weights weights[SUMS];
        _Pragma("GCC unroll 16") for (int i = 0; i < C; i++) {
            if (fetch) _mm_prefetch((const char *)(w + (size_t)COLUMNS * k + (size_t)C * at + i * STEP), _MM_HINT_T1);
            weights[i] = read_weights(w + (size_t)i * k + at);
        }
        _Pragma("GCC unroll 4") for (int r = 0; r < R; r++)
            _Pragma("GCC unroll 16") for (int i = 0; i < C; i++)
                sums[r * C + i] = add_step(sums[r * C + i], x + (size_t)r * k + at, weights[i]);
    }
    totals(line, sums);
    for (int r = 0; r < R; r++) memcpy(c + r * COLUMNS, line + r * C, C * sizeof(float));
}

enum { NEAR = 32 };  // rows of x that stay in the cache while a block of W is multiplied

static void block(const bf16 *w, const activation *x, int rows, int k, int column, int n, const float *bias, void *out,
                  int single) {
    float c[NEAR * COLUMNS] __attribute__((aligned(64)));
    for (int first = 0; first < rows; first += NEAR, x += (size_t)NEAR * k) {
        const int count = rows - first < NEAR ? rows - first : NEAR;
        int row = 0;
        enum { FOUR = SUMS / 4, TWO = SUMS / 2 };
        for (int i = 0; i < COLUMNS; i += FOUR)
            for (row = 0; row + 4 <= count; row += 4)
                dots(FOUR, 4, c + row * COLUMNS + i, w + (size_t)i * k, x + (size_t)row * k, k, !first && !row);
        if (row + 2 <= count) {
            for (int i = 0; i < COLUMNS; i += TWO)
                dots(TWO, 2, c + row * COLUMNS + i, w + (size_t)i * k, x + (size_t)row * k, k, !first && !row);
            row += 2;
        }
        if (row < count)
            for (int i = 0; i < COLUMNS; i += SUMS)
                dots(SUMS, 1, c + row * COLUMNS + i, w + (size_t)i * k, x + (size_t)row * k, k, !first && !row);
        for (row = 0; row < count; row++)
            write_row(out, (size_t)(first + row) * n + column, load(c + row * COLUMNS), bias, single);
    }
}
#endif

// out [rows, n] = x [rows, k] W[n, k]^T + bias [n], float32 or NULL; n is at least 16, k a multiple of 32.
// single: whether `out` is float32 instead of bfloat16. Returns 0 if out of memory.
int sequoia_linear(const bf16 *w, const float *bias, const bf16 *x, int rows, int n, int k, int threads, int single,
                   void *out) {
    const size_t bytes = laid_out_size(rows, k) * sizeof(activation);
    activation *laid_out = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!laid_out) return 0;
    lay_out(laid_out, x, rows, k);
    const int blocks = (n + COLUMNS - 1) / COLUMNS;
#pragma omp parallel num_threads(threads)
    {
        const int thread = omp_get_thread_num(), count = omp_get_num_threads();
        begin_products();
        for (int i = (int)((int64_t)blocks * thread / count); i < (int)((int64_t)blocks * (thread + 1) / count); i++) {
            const int column = i * COLUMNS + COLUMNS <= n ? i * COLUMNS : n - COLUMNS;  // the last block overlaps the previous one
            block(w + (size_t)column * k, laid_out, rows, k, column, n, bias ? bias + column : NULL, out, single);
        }
        end_products();
    }
    free(laid_out);
    return 1;
}
