// Peak rates of a processor, for passes.py: bytes read per second, and operations per second on registers alone.
//
// Built with the flags of one instruction set, like the passes themselves.

#include <immintrin.h>
#include <omp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// Return the seconds that all threads take to read a buffer once; `sum` keeps the compiler from removing the reads.
double bound_read(const char *buffer, size_t bytes, int threads, int32_t *sum) {
    int32_t found = 0;
    const double began = now();
#pragma omp parallel num_threads(threads) reduction(+ : found)
    {
        const size_t lines = bytes / 64, me = omp_get_thread_num(), all = omp_get_num_threads();
        const size_t first = lines * me / all, stop = lines * (me + 1) / all;
        __m256i sums[8];
        for (int i = 0; i < 8; i++) sums[i] = _mm256_setzero_si256();
        for (size_t line = first; line + 4 <= stop; line += 4) {
            const __m256i *from = (const __m256i *)(buffer + line * 64);
            _mm_prefetch((const char *)from + 2048, _MM_HINT_T0);
            _mm_prefetch((const char *)from + 2112, _MM_HINT_T0);
            _mm_prefetch((const char *)from + 2176, _MM_HINT_T0);
            _mm_prefetch((const char *)from + 2240, _MM_HINT_T0);
            for (int i = 0; i < 8; i++) sums[i] = _mm256_add_epi32(sums[i], _mm256_loadu_si256(from + i));
        }
        for (int i = 0; i < 8; i++) found += _mm256_extract_epi32(sums[i], 0);
    }
    *sum = found;
    return now() - began;
}

#define TURNS 200000
#define SUMS 12

// Return the floating-point operations per second that all threads together reach without accessing memory.
double bound_rate(int threads, float *kept) {
    float found = 0.0f;
    double operations = 0.0;
    const double began = now();
#pragma omp parallel num_threads(threads) reduction(+ : found, operations)
    {
#if defined(__AMX_TILE__)
        struct {
            uint8_t palette, start, zero[14];
            uint16_t width[16];
            uint8_t rows[16];
        } config = {.palette = 1};
        for (int i = 0; i < 8; i++) config.width[i] = 64, config.rows[i] = 16;
        __asm__ volatile("" ::: "memory");
        _tile_loadconfig(&config);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        _tile_zero(4);
        _tile_zero(5);
        _tile_zero(6);
        _tile_zero(7);
        for (int turn = 0; turn < TURNS; turn++) {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_release();
        operations += 4.0 * TURNS * 2 * 16 * 16 * 32;
#elif defined(__AVX512F__)
        __m512 sums[SUMS];
        for (int i = 0; i < SUMS; i++) sums[i] = _mm512_setzero_ps();
        __m512i x = _mm512_set1_epi32(0x3f803f80);
        for (int turn = 0; turn < TURNS; turn++) {
            __asm__ volatile("" : "+v"(x));
#ifdef WITH_BFLOAT16
            for (int i = 0; i < SUMS; i++) sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)x, (__m512bh)x);
#else
            for (int i = 0; i < SUMS; i++) sums[i] = _mm512_fmadd_ps((__m512)x, (__m512)x, sums[i]);
#endif
        }
        for (int i = 0; i < SUMS; i++) found += _mm512_reduce_add_ps(sums[i]);
#ifdef WITH_BFLOAT16
        operations += (double)SUMS * TURNS * 2 * 32;
#else
        operations += (double)SUMS * TURNS * 2 * 16;
#endif
#else
        __m256 sums[SUMS];
        for (int i = 0; i < SUMS; i++) sums[i] = _mm256_setzero_ps();
        __m256 x = _mm256_set1_ps(1.0f);
        for (int turn = 0; turn < TURNS; turn++) {
            __asm__ volatile("" : "+v"(x));
            for (int i = 0; i < SUMS; i++) sums[i] = _mm256_fmadd_ps(x, x, sums[i]);
        }
        for (int i = 0; i < SUMS; i++) found += sums[i][0];
        operations += (double)SUMS * TURNS * 2 * 8;
#endif
    }
    *kept = found;
    return operations / (now() - began);
}
