// Products with weights in tiles by AVX-512: bfloat16 dot products where the processor has them, else weights are widened
// and activations stay float32.
//
// Every entry of a result adds along K from the first pair to the last, whatever the number of rows.

#include "lanes.h"

enum { BATCH = 16, TOGETHER = 8 };  // rows that one call of `product` takes; rows whose sums stay in registers together

#ifdef WITH_BFLOAT16
typedef bf16 activation;

static inline void keep_activation(activation *to, floats x) { narrow(to, x); }

static inline __m512i both_of(const activation *pair) {  // in every lane
    int32_t word;
    memcpy(&word, pair, sizeof word);
    return _mm512_set1_epi32(word);
}

#define ADD_PAIR(R)                                                                                                   \
    const __m512bh first = (__m512bh)_mm512_loadu_si512(left), second = (__m512bh)_mm512_loadu_si512(right);        \
    _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                                                             \
        const __m512bh x = (__m512bh)both_of(a + r * a_row + 2 * pair);                                               \
        sums[r][0] = _mm512_dpbf16_ps(sums[r][0], x, first);                                                          \
        sums[r][1] = _mm512_dpbf16_ps(sums[r][1], x, second);                                                         \
    }
#else
typedef float activation;

static inline void keep_activation(activation *to, floats x) { store(to, x); }

#define ADD_PAIR(R)                                                                                                   \
    const __m512i one = _mm512_loadu_si512(left), other = _mm512_loadu_si512(right);                                \
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);                                                          \
    const __m512 even = (__m512)_mm512_slli_epi32(one, 16), odd = (__m512)_mm512_and_epi32(one, high);                \
    const __m512 even2 = (__m512)_mm512_slli_epi32(other, 16), odd2 = (__m512)_mm512_and_epi32(other, high);          \
    _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                                                             \
        const __m512 x = _mm512_set1_ps(a[r * a_row + 2 * pair]), y = _mm512_set1_ps(a[r * a_row + 2 * pair + 1]);    \
        sums[r][0] = _mm512_fmadd_ps(y, odd, _mm512_fmadd_ps(x, even, sums[r][0]));                                   \
        sums[r][1] = _mm512_fmadd_ps(y, odd2, _mm512_fmadd_ps(x, even2, sums[r][1]));                                 \
    }
#endif

#include "products_vectors.h"

static inline __attribute__((always_inline)) void rows_times_columns(const int R, const Product *p) {
    __m512 sums[TOGETHER][2];
    const activation *a = p->a;
    const size_t a_row = p->a_row;
    const bf16 *left = p->left, *right = p->right, *ahead = p->ahead;
    const size_t fetched = p->fetched_with_a_pair;
    _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    for (int step = 0; step < p->steps; step++) {
        _Pragma("GCC unroll 4") for (int pair = 0; pair < DEEP / 2; pair++, left += 32, right += 32, ahead += fetched) {
            _mm_prefetch((const char *)ahead, _MM_HINT_T1);
            _mm_prefetch((const char *)(ahead + 32), _MM_HINT_T1);
            ADD_PAIR(R)
        }
        a += p->a_step, left += p->w_step - TILE, right += p->w_step - TILE;
    }
    _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {
        _mm512_storeu_ps(p->c + r * p->c_row, sums[r][0]);
        _mm512_storeu_ps(p->c + r * p->c_row + LANES, sums[r][1]);
    }
}
#undef ADD_PAIR

static void few_rows(const Product *p, int rows) {
    switch (rows) {
    case 1: rows_times_columns(1, p); break;
    case 2: rows_times_columns(2, p); break;
    case 3: rows_times_columns(3, p); break;
    case 4: rows_times_columns(4, p); break;
    case 5: rows_times_columns(5, p); break;
    case 6: rows_times_columns(6, p); break;
    case 7: rows_times_columns(7, p); break;
    default: rows_times_columns(8, p);
    }
}

// sum [d] += weights of the keys in `slots`, of which there are at most 32, in the order and pairs in which `weigh` adds.
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
