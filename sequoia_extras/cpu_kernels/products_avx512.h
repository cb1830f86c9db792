// Products with tiled weights in AVX-512: bfloat16 dot products if the processor has them; otherwise weights are
// converted to float32 and activations stay float32.
//
// For any number of rows, every entry is summed along K from the first pair to the last.

#include "lanes.h"

enum { BATCH = 16, TOGETHER = 12 };  // rows per call of `product`; most rows whose sums fit in registers

#ifdef WITH_BFLOAT16
typedef bf16 activation;
typedef __m512i Weights;  // a pair along K in each of 16 columns

static inline void keep_activation(activation *to, floats x) { narrow(to, x); }

static inline __m512i both_of(const activation *pair) {  // broadcasts a pair to every lane
    int32_t word;
    memcpy(&word, pair, sizeof word);
    return _mm512_set1_epi32(word);
}

static inline Weights read_weights(const bf16 *from) { return _mm512_loadu_si512(from); }

static inline __m512 add_pair(__m512 sum, const activation *pair, Weights weights) {
    return _mm512_dpbf16_ps(sum, (__m512bh)both_of(pair), (__m512bh)weights);
}
#else
typedef float activation;
typedef struct {
    __m512 even, odd;
} Weights;

static inline void keep_activation(activation *to, floats x) { store(to, x); }

static inline Weights read_weights(const bf16 *from) {
    const __m512i both = _mm512_loadu_si512(from), high = _mm512_set1_epi32((int)0xffff0000);
    return (Weights){(__m512)_mm512_slli_epi32(both, 16), (__m512)_mm512_and_epi32(both, high)};
}

static inline __m512 add_pair(__m512 sum, const activation *pair, Weights weights) {
    sum = _mm512_fmadd_ps(_mm512_set1_ps(pair[0]), weights.even, sum);
    return _mm512_fmadd_ps(_mm512_set1_ps(pair[1]), weights.odd, sum);
}
#endif

#include "products_vectors.h"

// Multiply R rows by 32 columns.
static inline __attribute__((always_inline)) void rows_times_columns(const int R, const Product *p) {
    __m512 sums[TOGETHER][2];
    const activation *a = p->a;
    const bf16 *left = p->left, *right = p->right, *ahead = p->ahead;
    _Pragma("GCC unroll 12") for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    for (int step = 0; step < p->steps; step++) {
        _Pragma("GCC unroll 4") for (int pair = 0; pair < DEEP / 2; pair++, left += 32, right += 32) {
            _mm_prefetch((const char *)ahead, _MM_HINT_T1);
            _mm_prefetch((const char *)(ahead + 32), _MM_HINT_T1);
            ahead += p->fetched_with_a_pair;
            const Weights first = read_weights(left), second = read_weights(right);
            _Pragma("GCC unroll 12") for (int r = 0; r < R; r++) {
                sums[r][0] = add_pair(sums[r][0], a + r * DEEP + 2 * pair, first);
                sums[r][1] = add_pair(sums[r][1], a + r * DEEP + 2 * pair, second);
            }
        }
        a += TILE, left += p->w_step - TILE, right += p->w_step - TILE;
    }
    _Pragma("GCC unroll 12") for (int r = 0; r < R; r++) {
        _mm512_storeu_ps(p->c + r * p->c_row, sums[r][0]);
        _mm512_storeu_ps(p->c + r * p->c_row + LANES, sums[r][1]);
    }
}

static void few_rows(const Product *p, int rows) {  // 32 registers suffice for 12 rows by 32 columns
    switch (rows) {
    case 1: rows_times_columns(1, p); break;
    case 2: rows_times_columns(2, p); break;
    case 3: rows_times_columns(3, p); break;
    case 4: rows_times_columns(4, p); break;
    case 5: rows_times_columns(5, p); break;
    case 6: rows_times_columns(6, p); break;
    case 7: rows_times_columns(7, p); break;
    case 8: rows_times_columns(8, p); break;
    case 9: rows_times_columns(9, p); break;
    case 10: rows_times_columns(10, p); break;
    case 11: rows_times_columns(11, p); break;
    default: rows_times_columns(12, p);
    }
}

// Add the weighted values of at most 32 `slots` to sum [d], in the same order and the same pairs as `weigh`.
static void weigh_some(float *sum, const activation *weights, const bf16 *values, const int32_t *slots, int count,
                       int size) {
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    for (int part = 0; part < size / 16; part++) {
        __m512 found = _mm512_loadu_ps(sum + part * 16);
        for (int i = 0; i < count; i += 2) {
            __m512i one = _mm512_loadu_si512(values + value_pair(slots[i], part, size)), other = _mm512_setzero_si512();
            if (i + 1 < count) other = _mm512_loadu_si512(values + value_pair(slots[i + 1], part, size));
            one = slots[i] % 2 ? _mm512_srli_epi32(one, 16) : _mm512_andnot_epi32(high, one);
            if (i + 1 < count) other = slots[i + 1] % 2 ? _mm512_and_epi32(other, high) : _mm512_slli_epi32(other, 16);
#ifdef WITH_BFLOAT16
            found = _mm512_dpbf16_ps(found, (__m512bh)both_of(weights + i), (__m512bh)_mm512_or_epi32(one, other));
#else
            found = _mm512_fmadd_ps(_mm512_set1_ps(weights[i]), (__m512)_mm512_slli_epi32(one, 16), found);
            found = _mm512_fmadd_ps(_mm512_set1_ps(weights[i + 1]), (__m512)other, found);
#endif
        }
        _mm512_storeu_ps(sum + part * 16, found);
    }
}
