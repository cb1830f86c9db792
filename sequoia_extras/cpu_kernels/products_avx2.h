// Products with tiled weights in AVX2 and FMA: weights are converted to float32, activations stay float32.
//
// For any number of rows, every entry is summed along K from the first pair to the last.

#include "lanes.h"

enum { BATCH = 16, TOGETHER = 4 };  // rows per call of `product`; most rows whose sums fit in registers

typedef float activation;

static inline void keep_activation(activation *to, floats x) { store(to, x); }

typedef struct {
    __m256 even, odd;
} Weights;

static inline Weights read_weights(const bf16 *from) {
    const __m256i both = _mm256_loadu_si256((const __m256i *)from), high = _mm256_set1_epi32((int)0xffff0000);
    return (Weights){(__m256)_mm256_slli_epi32(both, 16), (__m256)_mm256_and_si256(both, high)};
}

#include "products_vectors.h"

// Multiply R rows by C vectors of 8 columns, starting at `columns`; a tile has two such vectors.
static inline __attribute__((always_inline)) void rows_times_columns(const int R, const int C, const Product *p,
                                                                     int columns) {
    __m256 sums[TOGETHER][4];
    const activation *a = p->a;
    const size_t fetched = p->fetched_with_a_pair * C / 4;  // 32 columns take one or two turns
    const bf16 *left = columns ? p->right : p->left, *right = p->right;
    const bf16 *ahead = p->ahead + (columns ? p->steps * (DEEP / 2) * fetched : 0);
    _Pragma("GCC unroll 4") for (int r = 0; r < R; r++)
        _Pragma("GCC unroll 4") for (int c = 0; c < C; c++) sums[r][c] = _mm256_setzero_ps();
    for (int step = 0; step < p->steps; step++) {
        _Pragma("GCC unroll 2") for (int pair = 0; pair < DEEP / 2; pair++, left += 32, right += 32, ahead += fetched) {
            _mm_prefetch((const char *)ahead, _MM_HINT_T1);
            _mm_prefetch((const char *)(ahead + 32), _MM_HINT_T1);
            Weights weights[4];
            _Pragma("GCC unroll 4") for (int c = 0; c < C; c++)
                weights[c] = read_weights((c < 2 ? left : right) + c % 2 * 16);
            _Pragma("GCC unroll 4") for (int r = 0; r < R; r++) {
                const __m256 x = _mm256_set1_ps(a[r * DEEP + 2 * pair]), y = _mm256_set1_ps(a[r * DEEP + 2 * pair + 1]);
                _Pragma("GCC unroll 4") for (int c = 0; c < C; c++)
                    sums[r][c] = _mm256_fmadd_ps(y, weights[c].odd, _mm256_fmadd_ps(x, weights[c].even, sums[r][c]));
            }
        }
        a += TILE, left += p->w_step - TILE, right += p->w_step - TILE;
    }
    _Pragma("GCC unroll 4") for (int r = 0; r < R; r++)
        _Pragma("GCC unroll 4") for (int c = 0; c < C; c++)
            _mm256_storeu_ps(p->c + r * p->c_row + columns + c * 8, sums[r][c]);
}

static void few_rows(const Product *p, int rows) {  // 16 registers suffice for 2 rows by 32 columns, or 4 rows by 16
    switch (rows) {
    case 1: rows_times_columns(1, 4, p, 0); break;
    case 2: rows_times_columns(2, 2, p, 0), rows_times_columns(2, 2, p, 16); break;
    case 3: rows_times_columns(3, 2, p, 0), rows_times_columns(3, 2, p, 16); break;
    default: rows_times_columns(4, 2, p, 0), rows_times_columns(4, 2, p, 16);
    }
}

// Add the weighted values of at most 32 `slots` to sum [d], in the same order as `weigh`.
static void weigh_some(float *sum, const activation *weights, const bf16 *values, const int32_t *slots, int count,
                       int size) {
    const __m256i high = _mm256_set1_epi32((int)0xffff0000);
    for (int part = 0; part < size / 16; part++)
        for (int half = 0; half < 2; half++) {
            __m256 found = _mm256_loadu_ps(sum + part * 16 + half * 8);
            for (int i = 0; i < count; i++) {
                const bf16 *from = values + value_pair(slots[i], part, size) + half * 16;
                const __m256i both = _mm256_loadu_si256((const __m256i *)from);
                const __m256i one = slots[i] % 2 ? _mm256_and_si256(both, high) : _mm256_slli_epi32(both, 16);
                found = _mm256_fmadd_ps(_mm256_set1_ps(weights[i]), (__m256)one, found);
            }
            _mm256_storeu_ps(sum + part * 16 + half * 8, found);
        }
}
