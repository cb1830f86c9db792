// A whole Llama forward in one call, for processors that multiply bfloat16 matrices themselves (AMX).
//
// A small model on CPU spends most of a pass between the kernels of a framework. Here a pass is one parallel region; its
// time is that of reading the weights once. bfloat16 weights and cache, float32 in between.
//
// Every row of the result depends only on the tokens that row sees, bit for bit: each product adds in one order whatever
// the number of rows, and attention adds over the visible keys in the order of their positions, wherever in the cache
// they lie. So a token gets the same logits alone, in a chain or in a tree.
//
// Built by compile_c.py together with vocabulary_rows.c. For tests, where a processor lacks the unit, amx_emulation.h is
// read before: an instruction of AMX or AVX512-BF16 that is new here has to be added there.
// Shapes: q = new tokens, D = hidden size, I = inner size of the MLP, H, K = query and key heads, d = head size,
// V = vocabulary.

#include <immintrin.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int rows_soften_one(const float *, int64_t, float, float *);  // see vocabulary_rows.c
int rows_largest(const float *, int64_t, int64_t, int64_t, int64_t *);
int rows_draw(const float *, int64_t, int64_t, int64_t, int, const double *, int64_t *);

typedef uint16_t bf16;

// A tile of weights is 32 along K times 16 columns, a tile of activations 16 rows times 32 along K; 512 entries each.
enum { TILE = 512, ROWS = 16, DEEP = 32, GROUP = 2, WIDE = 32, LANES = 16, WIDEST_HEAD = 256 };

typedef struct {
    int32_t hidden, inner, layers, heads, key_heads, head_size, vocab, context;
    float eps;
} Shape;

typedef struct {  // a matrix [n, k] in tiles: [groups of 32 columns][k / 32][2 tiles]
    bf16 *tiles;
    int n, k;
} Matrix;

typedef struct {
    Matrix project, output, gate_up, down;
} Layer;

typedef struct {
    Shape shape;
    const float *cosines, *sines, *norms;  // [context, d / 2] twice, [2 * layers + 1, D], owned by the caller
    Layer *layers;
    Matrix head;
    bf16 *memory, *embedding;  // all weights; at its end [V, D]
    size_t bytes;
} Model;

typedef struct {
    const Model *model;
    int capacity;        // slots, a multiple of 32
    size_t bytes;        // of keys, and of values
    bf16 *keys;          // [layers][K][capacity / 16][d / 2][16][2]: 16 keys side by side, two entries of each together
    bf16 *values;        // [layers][K][capacity / 32][d / 16][16][16][2]: two keys together, 32 in a tile
    int rows, threads;   // what the scratch below has room for
    float *hidden, *projected, *scores;         // [q, D], [q, (H + 2 K) d], [threads, 16, capacity]
    bf16 *input, *attended, *inner, *weights;   // the first three in tiles: see `place`
    int32_t *seen, *seen_start, *run;           // see `prepare`
    float *logits;       // of a drafted level
    size_t logits_size;
} Cache;

// ---- memory

static size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

static void *take(size_t bytes) {  // zeroed, in large pages where the system grants them
    bytes = round_up(bytes ? bytes : 1, (size_t)1 << 21);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static void give(void *memory, size_t bytes) {
    if (memory) munmap(memory, round_up(bytes ? bytes : 1, (size_t)1 << 21));
}

// Compilers do not know that the tile instructions read memory: what was stored before must be there. (In older ones these
// are macros that want their arguments in parentheses.)
static inline void settle(void) { __asm__ volatile("" ::: "memory"); }

// ---- small vector functions

static inline __m512 widen(const bf16 *x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x)), 16));
}

static inline void narrow(bf16 *to, __m512 x) { _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh(x)); }

static inline __m512 exponential(__m512 x) {  // relative error below 2e-7; at least 1e-30: far from what could underflow
    x = _mm512_max_ps(x, _mm512_set1_ps(-69.0f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 y = _mm512_set1_ps(1.9875691500e-4f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.3981999507e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.3334519073e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.1665795894e-2f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.6666665459e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.0000001201e-1f));
    y = _mm512_fmadd_ps(y, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(y, n);
}

// Where entry (row, column) of activations [rows, k] lies: [row / 16][k / 32][16][32].
static inline size_t place(int row, int column, int k) {
    return ((size_t)(row / ROWS) * (k / DEEP) + column / DEEP) * TILE + row % ROWS * DEEP + column % DEEP;
}

static inline __m512 reciprocal(__m512 x) {  // one Newton step from 14 bits
    __m512 y = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(y, _mm512_fnmadd_ps(x, y, _mm512_set1_ps(2.0f)));
}

static void normalise(bf16 *to, int at, const float *row, const float *weight, int size, float eps) {
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < size; i += LANES) {
        __m512 x = _mm512_loadu_ps(row + i);
        sum = _mm512_fmadd_ps(x, x, sum);
    }
    __m512 scale = _mm512_set1_ps(1.0f / __builtin_sqrtf(_mm512_reduce_add_ps(sum) / (float)size + eps));
    for (int i = 0; i < size; i += LANES)
        narrow(to + place(at, i, size),
               _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(row + i), scale), _mm512_loadu_ps(weight + i)));
}

// ---- products

static size_t tiles_of(int n, int k) { return round_up(n, WIDE) / ROWS * (size_t)(k / DEEP); }

// Copy rows [from, from + 16) of a [n, k] matrix into the tiles of one block of columns; rows beyond n are zero.
static void pack_block(bf16 *tiles, const bf16 *weight, int n, int k, int from) {
    for (int step = 0; step < k / DEEP; step++)
        for (int column = 0; column < ROWS; column++)
            for (int i = 0; i < DEEP; i++)
                tiles[(size_t)step * GROUP * TILE + i / 2 * 32 + column * 2 + i % 2] =
                    from + column < n ? weight[(size_t)(from + column) * k + step * DEEP + i] : 0;
}

static bf16 *pack(Matrix *matrix, bf16 *memory, const bf16 *weight, int n, int k) {
    *matrix = (Matrix){memory, n, k};
    for (int block = 0; block < (int)(round_up(n, WIDE) / ROWS); block++)
        pack_block(memory + (size_t)(block / GROUP) * (k / DEEP) * GROUP * TILE + block % GROUP * TILE, weight, n, k,
                   block * ROWS);
    return memory + tiles_of(n, k) * TILE;
}

// Gate and up side by side: each group holds 16 columns of the one, then the same 16 of the other.
static bf16 *pack_pair(Matrix *matrix, bf16 *memory, const bf16 *gate, const bf16 *up, int n, int k) {
    *matrix = (Matrix){memory, 2 * n, k};
    for (int group = 0; group < n / ROWS; group++)
        for (int block = 0; block < GROUP; block++)
            pack_block(memory + (size_t)group * (k / DEEP) * GROUP * TILE + block * TILE, block ? up : gate, n, k,
                       group * ROWS);
    return memory + tiles_of(2 * n, k) * TILE;
}

static void use_tiles(void) {
    struct {
        uint8_t palette, start, zero[14];
        uint16_t width[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) config.width[i] = 64, config.rows[i] = ROWS;
    settle();
    _tile_loadconfig(&config);
}

// c [16, 32] = a [16, k] times the 32 columns of one group. Bound by reading the weights, which the processor fetches ahead.
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

// c [32, 32] = a [32, k] times the same. Here reading and multiplying take equally long: the weights pass by the first
// cache, where `a` stays, and with every step `lines` cache lines of `ahead` are fetched into the second.
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

enum Then { STORE, ADD, GATE };

static const bf16 *first_tiles(const Matrix *matrix) {  // of this thread's share
    const int groups = (matrix->n + WIDE - 1) / WIDE, thread = omp_get_thread_num(), threads = omp_get_num_threads();
    return matrix->tiles + (size_t)(groups * thread / threads) * (matrix->k / DEEP) * GROUP * TILE;
}

// This thread's share of a [rows, k] times matrix. `a` and what GATE writes lie in tiles, other results row by row.
// While many rows are multiplied by one group the next one is fetched, after the last the first of the matrix `after`.
static void multiply(const Matrix *matrix, const bf16 *a, int rows, enum Then then, void *out, int width,
                     const Matrix *after) {
    const int k = matrix->k, groups = (matrix->n + WIDE - 1) / WIDE, size = k / DEEP * GROUP * TILE;
    const int thread = omp_get_thread_num(), threads = omp_get_num_threads(), stop = groups * (thread + 1) / threads;
    const int pairs = rows > ROWS ? (rows + ROWS - 1) / (2 * ROWS) : 1, lines = (GROUP * TILE / 32 + pairs - 1) / pairs;
    const bf16 *tiles = first_tiles(matrix);
    float c[2 * ROWS * WIDE] __attribute__((aligned(64)));
    for (int group = groups * thread / threads; group < stop; group++, tiles += size) {
        const bf16 *ahead = group + 1 < stop ? tiles + size : first_tiles(after);
        for (int first = 0; first < rows; first += 2 * ROWS, ahead += (size_t)(k / DEEP) * lines * 32) {
            if (rows - first > ROWS) {
                multiply_two(c, a + (size_t)first * k, tiles, k, ahead, lines);
            } else {
                multiply_one(c, a + (size_t)first * k, tiles, k);
                for (int i = 0; i < 128 && rows > 2; i++)  // lest reading pauses while many results are written
                    _mm_prefetch((const char *)(ahead + 32 * i), _MM_HINT_T1);
            }
            const int count = rows - first < 2 * ROWS ? rows - first : 2 * ROWS;
            for (int row = 0; row < count; row++) {
                const float *from = c + row * WIDE;
                if (then == GATE) {
                    const __m512 gate = _mm512_load_ps(from), up = _mm512_load_ps(from + ROWS);
                    const __m512 minus = _mm512_min_ps(_mm512_sub_ps(_mm512_setzero_ps(), gate), _mm512_set1_ps(80.0f));
                    const __m512 low = exponential(minus);  // beyond 80 the result is 0 to rounding, and 1 / inf no number
                    narrow((bf16 *)out + place(first + row, group * ROWS, width),
                           _mm512_mul_ps(_mm512_mul_ps(gate, reciprocal(_mm512_add_ps(_mm512_set1_ps(1.0f), low))), up));
                    continue;
                }
                float *to = (float *)out + (size_t)(first + row) * width + group * WIDE;
                const int left = matrix->n - group * WIDE;
                for (int i = 0; i < WIDE && i < left; i += LANES) {
                    __mmask16 mask = left - i >= LANES ? 0xffff : (__mmask16)((1u << (left - i)) - 1);
                    __m512 x = _mm512_load_ps(from + i);
                    if (then == ADD) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(mask, to + i));
                    _mm512_mask_storeu_ps(to + i, mask, x);
                }
            }
        }
    }
}

// ---- attention

// Rotate one head of d entries by its position.
static void rotate(bf16 *to, const float *x, const float *cosine, const float *sine, int size) {
    const int half = size / 2;
    for (int i = 0; i < half; i += LANES) {
        __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + half + i);
        __m512 c = _mm512_loadu_ps(cosine + i), s = _mm512_loadu_ps(sine + i);
        narrow(to + i, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        narrow(to + half + i, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
}

// Store keys [rows, d] in the slots from `slot` on, one entry pair of up to 16 of them at a time.
static void store_keys(bf16 *keys, const bf16 *from, int slot, int rows, int size) {
    const __m512i lanes = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                             _mm512_set1_epi32(size / 2));
    for (int row = 0; row < rows;) {
        const int lane = (slot + row) % 16, count = rows - row < 16 - lane ? rows - row : 16 - lane;
        const __mmask16 some = (__mmask16)(((1u << count) - 1) << lane);
        const int32_t *first = (const int32_t *)(from + (size_t)row * size) - lane * (size / 2);
        int32_t *to = (int32_t *)(keys + (size_t)((slot + row) / 16) * 16 * size);
        for (int i = 0; i < size / 2; i++, to += 16)
            _mm512_mask_storeu_epi32(to, some, _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), some, lanes, first + i, 4));
        row += count;
    }
}

// Where 16 entries of a slot's value lie, each beside that of the slot it shares a pair with.
static inline size_t value_pair(int slot, int part, int size) {
    return ((size_t)(slot / DEEP) * (size / 16) + part) * TILE + slot % DEEP / 2 * 32;
}

static inline void store_value(bf16 *values, const float *value, int slot, int size) {
    for (int i = 0; i < size; i += LANES) {
        bf16 *to = values + value_pair(slot, i / LANES, size);
        __m512i line = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(value + i)));
        _mm512_mask_storeu_epi16(to, slot % 2 ? 0xaaaaaaaa : 0x55555555, _mm512_slli_epi32(line, slot % 2 * 16));
    }
}

// scores [16, stride] = queries [16, d] in tiles, times all keys, 32 keys at a time.
static void score(float *scores, int stride, const bf16 *queries, const bf16 *keys, int blocks, int size) {
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

// sums [16, d] = weights [16, stride] times values, 32 keys at a time, 32 or 64 entries of the head at a time.
static void weigh(float *sums, const bf16 *weights, int stride, const bf16 *values, int blocks, int size) {
    settle();
    for (int part = 0; part < size / 16; part += 4) {
        const int four = size / 16 - part > 2;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int block = 0; block < blocks; block++) {
            const bf16 *tile = values + ((size_t)block * (size / 16) + part) * TILE;
            _tile_loadd(4, (weights + block * DEEP), stride * 2);
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

// sum [d] += weights of the keys in `slots`, of which there are at most 32, as the matrix unit would add them: first and
// second of each pair apart, then both to the sum. The products are exact, so only this order matters.
static void weigh_one(float *sum, const bf16 *weights, const bf16 *values, const int32_t *slots, int count, int size) {
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

// Scores of one row over its keys to weights relative to the largest, up to the next 32 keys -> their sum.
static float soften(bf16 *weights, float *scores, int count, float scale) {
    const int padded = (int)round_up(count, DEEP);
    for (int i = count; i < padded; i++) scores[i] = -__builtin_inff();
    __m512 top = _mm512_set1_ps(-__builtin_inff()), sum = _mm512_setzero_ps();
    for (int i = 0; i < padded; i += LANES) top = _mm512_max_ps(top, _mm512_loadu_ps(scores + i));
    const __m512 highest = _mm512_set1_ps(_mm512_reduce_max_ps(top)), factor = _mm512_set1_ps(scale);
    for (int i = 0; i < padded; i += LANES) {
        __m512 x = exponential(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(scores + i), highest), factor));
        if (i + LANES > count) x = _mm512_maskz_mov_ps(i < count ? (__mmask16)((1u << (count - i)) - 1) : 0, x);
        narrow(weights + i, x);
        sum = _mm512_add_ps(sum, x);
    }
    return _mm512_reduce_add_ps(sum);
}

// One key head and the query heads that share it, for all new rows. `prefix` slots are seen by every row, after them
// row r sees slots seen[seen_start[r]] to seen[seen_start[r + 1] - 1], in the order of their positions.
static void attend(Cache *cache, int layer, int head, const int64_t *positions, int rows, int length, int prefix) {
    const Shape *shape = &cache->model->shape;
    const int size = shape->head_size, share = shape->heads / shape->key_heads, blocks = (length + rows + DEEP - 1) / DEEP;
    const int width = (shape->heads + 2 * shape->key_heads) * size, stride = cache->capacity;
    bf16 *keys = cache->keys + ((size_t)layer * shape->key_heads + head) * cache->capacity * size;
    bf16 *values = cache->values + ((size_t)layer * shape->key_heads + head) * cache->capacity * size;
    const float scale = 1.0f / __builtin_sqrtf((float)size);
    float *scores = cache->scores + (size_t)omp_get_thread_num() * ROWS * stride;
    bf16 *weights = cache->weights + (size_t)omp_get_thread_num() * ROWS * stride;
    bf16 queries[ROWS * WIDEST_HEAD] __attribute__((aligned(64))), fresh[ROWS * WIDEST_HEAD] __attribute__((aligned(64)));
    float sums[ROWS * WIDEST_HEAD] __attribute__((aligned(64)));

    for (int row = 0; row < rows; row++) {
        const float *from = cache->projected + (size_t)row * width + (shape->heads + head) * size;
        const size_t angle = (size_t)positions[row] * (size / 2);
        bf16 *key = fresh + (size_t)(row % ROWS) * size;
        rotate(key, from, cache->model->cosines + angle, cache->model->sines + angle, size);
        if (row % ROWS == ROWS - 1 || row + 1 == rows)
            store_keys(keys, fresh, length + row - row % ROWS, row % ROWS + 1, size);
        store_value(values, from + (size_t)shape->key_heads * size, length + row, size);
    }
    for (int first = 0; first < rows * share; first += ROWS) {  // token after token, the heads that share keys together
        const int count = rows * share - first < ROWS ? rows * share - first : ROWS;
        for (int r = 0; r < count; r++) {
            const int row = (first + r) / share, query = head * share + (first + r) % share;
            const size_t angle = (size_t)positions[row] * (size / 2);
            bf16 line[WIDEST_HEAD];
            rotate(line, cache->projected + (size_t)row * width + query * size, cache->model->cosines + angle,
                   cache->model->sines + angle, size);
            for (int i = 0; i < size; i += DEEP) memcpy(queries + place(r, i, size), line + i, DEEP * sizeof(bf16));
        }
        score(scores, stride, queries, keys, blocks, size);
        float totals[ROWS];
        for (int r = 0; r < count; r++) {
            const int start = cache->seen_start[(first + r) / share], more = cache->seen_start[(first + r) / share + 1] - start;
            float *line = scores + (size_t)r * stride;
            for (int i = 0; i < more; i++) line[prefix + i] = line[cache->seen[start + i]];  // slots lie at or after it
            totals[r] = soften(weights + (size_t)r * stride, line, prefix + more, scale);
        }
        int run = cache->run[first / share];
        for (int r = 1; r < count; r++) run = cache->run[(first + r) / share] < run ? cache->run[(first + r) / share] : run;
        const int shared = (prefix + run) / DEEP;  // blocks of slots that all these rows see: many in a prompt
        weigh(sums, weights, stride, values, shared, size);
        for (int r = 0; r < count; r++) {
            const int row = (first + r) / share, query = head * share + (first + r) % share;
            const int32_t *seen = cache->seen + cache->seen_start[row];
            const int all = prefix + cache->seen_start[row + 1] - cache->seen_start[row];
            for (int from = shared * DEEP; from < all; from += DEEP) {
                int32_t slots[DEEP];
                const int here = all - from < DEEP ? all - from : DEEP;
                for (int i = 0; i < here; i++) slots[i] = from + i < prefix ? from + i : seen[from + i - prefix];
                weigh_one(sums + r * size, weights + (size_t)r * stride + from, values, slots, here, size);
            }
            const __m512 inverse = _mm512_set1_ps(1.0f / totals[r]);
            for (int i = 0; i < size; i += LANES)
                narrow(cache->attended + place(row, query * size + i, shape->heads * size),
                       _mm512_mul_ps(_mm512_loadu_ps(sums + r * size + i), inverse));
        }
    }
}

// ---- what Python calls

int sequoia_supported(void) {  // ask the system for the matrix unit's registers; 0 where it has none
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

// weights: per layer q, k and v in one [(H + 2 K) d, D], output, gate, up, down; then the head. All bfloat16 rows.
Model *sequoia_model(const Shape *shape, const bf16 *embedding, const float *cosines, const float *sines,
                     const float *norms, const bf16 *const *weights) {
    const int D = shape->hidden, I = shape->inner, d = shape->head_size, H = shape->heads, K = shape->key_heads;
    Model *model = calloc(1, sizeof *model);
    if (!model) return NULL;
    model->shape = *shape;
    model->cosines = cosines, model->sines = sines, model->norms = norms;
    size_t tiles = shape->layers * (tiles_of((H + 2 * K) * d, D) + tiles_of(D, H * d) + tiles_of(2 * I, D) + tiles_of(D, I));
    const size_t words = (size_t)shape->vocab * D;
    model->bytes = ((tiles + tiles_of(shape->vocab, D)) * TILE + words) * sizeof(bf16);
    model->memory = take(model->bytes);
    model->layers = calloc(shape->layers, sizeof(Layer));
    if (!model->memory || !model->layers) {
        give(model->memory, model->bytes);
        free(model->layers);
        free(model);
        return NULL;
    }
    bf16 *next = model->memory;
    for (int i = 0; i < shape->layers; i++, weights += 5) {
        next = pack(&model->layers[i].project, next, weights[0], (H + 2 * K) * d, D);
        next = pack(&model->layers[i].output, next, weights[1], D, H * d);
        next = pack_pair(&model->layers[i].gate_up, next, weights[2], weights[3], I, D);
        next = pack(&model->layers[i].down, next, weights[4], D, I);
    }
    model->embedding = pack(&model->head, next, weights[0], shape->vocab, D);
    memcpy(model->embedding, embedding, words * sizeof(bf16));
    return model;
}

void sequoia_model_free(Model *model) {
    give(model->memory, model->bytes);
    free(model->layers);
    free(model);
}

Cache *sequoia_cache(const Model *model, int capacity) {
    Cache *cache = calloc(1, sizeof *cache);
    if (!cache) return NULL;
    cache->model = model;
    cache->capacity = (int)round_up(capacity, DEEP);
    const Shape *shape = &model->shape;
    cache->bytes = (size_t)shape->layers * shape->key_heads * cache->capacity * shape->head_size * sizeof(bf16);
    cache->keys = take(cache->bytes);
    cache->values = take(cache->bytes);
    if (cache->keys && cache->values) return cache;
    give(cache->keys, cache->bytes);
    give(cache->values, cache->bytes);
    free(cache);
    return NULL;
}

static void free_scratch(Cache *cache) {
    free(cache->hidden), free(cache->projected), free(cache->scores), free(cache->input), free(cache->attended);
    free(cache->inner), free(cache->weights), free(cache->seen), free(cache->seen_start), free(cache->run);
    cache->hidden = cache->projected = cache->scores = NULL;
    cache->input = cache->attended = cache->inner = cache->weights = NULL;
    cache->seen = cache->seen_start = cache->run = NULL;
    cache->rows = 0;
}

void sequoia_cache_free(Cache *cache) {
    free_scratch(cache);
    free(cache->logits);
    give(cache->keys, cache->bytes);
    give(cache->values, cache->bytes);
    free(cache);
}

static int make_room(Cache *cache, int rows, int threads) {
    const Shape *shape = &cache->model->shape;
    if (rows <= cache->rows && threads <= cache->threads) return 1;
    rows = rows > cache->rows ? rows : cache->rows;
    free_scratch(cache);
    const size_t count = round_up(rows, 2 * ROWS), size = shape->head_size;
#define ROOM(type, entries) aligned_alloc(64, round_up((entries) * sizeof(type), 64))
    cache->hidden = ROOM(float, count * shape->hidden);
    cache->projected = ROOM(float, count * (shape->heads + 2 * shape->key_heads) * size);
    cache->scores = ROOM(float, (size_t)threads * ROWS * cache->capacity);
    cache->weights = ROOM(bf16, (size_t)threads * ROWS * cache->capacity);
    cache->input = ROOM(bf16, count * shape->hidden);
    cache->attended = ROOM(bf16, count * shape->heads * size);
    cache->inner = ROOM(bf16, count * shape->inner);
    cache->seen = ROOM(int32_t, (size_t)rows * cache->capacity);
    cache->seen_start = ROOM(int32_t, rows + 1);
    cache->run = ROOM(int32_t, rows);
#undef ROOM
    if (!cache->hidden || !cache->projected || !cache->scores || !cache->input || !cache->attended || !cache->inner ||
        !cache->weights || !cache->seen || !cache->seen_start || !cache->run) {
        free_scratch(cache);
        return 0;
    }
    memset(cache->input, 0, count * shape->hidden * sizeof(bf16));  // rows of padding: finite, or the tiles trap
    memset(cache->attended, 0, count * shape->heads * size * sizeof(bf16));
    memset(cache->inner, 0, count * shape->inner * sizeof(bf16));
    cache->rows = rows, cache->threads = threads;
    return 1;
}

typedef struct {  // what one pass is about
    int length, rows, last, keep;
    const int64_t *ids, *positions;
    const float *tail;
    float *logits;
} Pass;

// Write down which of the last slots each row sees, and how many of them without a gap. By one thread; `make_room` was
// called for as many rows.
static void prepare(Cache *cache, const Pass *pass) {
    int32_t *seen = cache->seen;
    const int prefix = pass->length + pass->rows - pass->last;
    for (int row = 0; row < pass->rows; row++) {
        const float *tail = pass->tail + (size_t)row * pass->last;
        int run = 0;
        while (run < pass->last && tail[run] == 0.0f) run++;
        cache->run[row] = run;
        cache->seen_start[row] = (int32_t)(seen - cache->seen);
        for (int i = 0; i < pass->last; i++)
            if (tail[i] == 0.0f) *seen++ = prefix + i;
    }
    cache->seen_start[pass->rows] = (int32_t)(seen - cache->seen);
}

// Every thread of a region calls this with the same pass; the logits are whole after the next barrier.
static void run(Cache *cache, const Pass *pass) {
    const Model *model = cache->model;
    const Shape *shape = &model->shape;
    const int D = shape->hidden, K = shape->key_heads, width = (shape->heads + 2 * K) * shape->head_size;
    const int rows = pass->rows, prefix = pass->length + rows - pass->last;
    const int thread = omp_get_thread_num(), count = omp_get_num_threads();
    const unsigned control = _mm_getcsr();
    _mm_setcsr(control | 0x8040);  // what is too small for a normal number is 0, as in the matrix unit
    use_tiles();
    for (int row = thread; row < rows; row += count)
        for (int i = 0; i < D; i += 32)
            _mm_prefetch((const char *)(model->embedding + (size_t)pass->ids[row] * D + i), _MM_HINT_T0);
    for (int row = thread; row < rows; row += count) {
        float *to = cache->hidden + (size_t)row * D;
        const bf16 *from = model->embedding + (size_t)pass->ids[row] * D;
        for (int i = 0; i < D; i += LANES) _mm512_storeu_ps(to + i, widen(from + i));
        normalise(cache->input, row, to, model->norms, D, shape->eps);
    }
    for (int index = 0; index < shape->layers; index++) {
        const Layer *layer = &model->layers[index];
        const float *norm = model->norms + (size_t)(2 * index + 1) * D;
        const int last_layer = index + 1 == shape->layers;
        const int first = last_layer ? rows - pass->keep : 0;  // after the last layer only what is wanted
#pragma omp barrier
        multiply(&layer->project, cache->input, rows, STORE, cache->projected, width, &layer->output);
#pragma omp barrier
        for (int head = thread; head < K; head += count)
            attend(cache, index, head, pass->positions, rows, pass->length, prefix);
#pragma omp barrier
        multiply(&layer->output, cache->attended, rows, ADD, cache->hidden, D, &layer->gate_up);
#pragma omp barrier
        for (int row = thread; row < rows; row += count)
            normalise(cache->input, row, cache->hidden + (size_t)row * D, norm, D, shape->eps);
#pragma omp barrier
        multiply(&layer->gate_up, cache->input, rows, GATE, cache->inner, shape->inner, &layer->down);
#pragma omp barrier
        multiply(&layer->down, cache->inner, rows, ADD, cache->hidden, D, last_layer ? &model->head : &layer[1].project);
#pragma omp barrier
        for (int row = first + thread; row < rows; row += count)
            normalise(cache->input, row - first, cache->hidden + (size_t)row * D, norm + D, D, shape->eps);
    }
#pragma omp barrier
    multiply(&model->head, cache->input, pass->keep, STORE, pass->logits, shape->vocab, &model->layers[0].project);
    _tile_release();
    _mm_setcsr(control);
}

// Append q tokens to a cache of `length` slots -> logits float32 [keep, V] of the last rows; 0 when memory ran out;
// -1 for an id or a position that there is not.
// tail: float32 [q, last], 0 where a row sees a slot among the last ones (the new ones included), -inf where not.
int sequoia_forward(Cache *cache, int threads, int length, int rows, const int64_t *ids, const int64_t *positions,
                    int last, const float *tail, int keep, float *logits) {
    const Pass pass = {length, rows, last, keep, ids, positions, tail, logits};
    const Shape *shape = &cache->model->shape;
    for (int row = 0; row < rows; row++)
        if (ids[row] < 0 || ids[row] >= shape->vocab || positions[row] < 0 || positions[row] >= shape->context) return -1;
    if (!make_room(cache, rows, threads)) return 0;
    prepare(cache, &pass);
#pragma omp parallel num_threads(threads)
    run(cache, &pass);
    return 1;
}

typedef struct {  // one level of a tree: the nodes that are forwarded, and their children
    int32_t forwarded, widest, first_child, reserved;
    const int64_t *nodes, *counts;  // [forwarded]: which they are, how many children each has
    const float *tail;              // [forwarded, slots from the root on]
} Level;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// Draft a whole tree, level by level. `tokens` [n] holds the root and receives the rest, `chances` [n] the probability of
// each; `probs` [forwarded nodes, size] the rows they were drawn from: by `uniforms`, one for each draw, with or
// without replacement, or the most likely where that is NULL. The last `unseen` committed tokens come first, at `place` and before; positions from `limit`
// on are cut to the last one. -> 1; 0 when memory ran out; -1 when logits are not finite. `seconds` grows by what the
// forwards took.
int sequoia_draft(Cache *cache, int threads, int length, int unseen, const int64_t *ids, int64_t place, int64_t limit,
                  int levels, const Level *all, int64_t size, float inverse, int replace, const double *uniforms,
                  float *probs, int64_t *tokens, float *chances, double *seconds) {
    const int vocab = cache->model->shape.vocab;
    int most = unseen, draws = 0, failed = 0;
    for (int i = 0; i < levels; i++) {
        if (all[i].forwarded > most) most = all[i].forwarded;
        if (all[i].forwarded * all[i].widest > draws) draws = all[i].forwarded * all[i].widest;
    }
    const size_t wanted = (size_t)most * vocab + (size_t)unseen * unseen;
    if (wanted > cache->logits_size) {
        free(cache->logits);
        cache->logits = malloc(wanted * sizeof(float));
        cache->logits_size = cache->logits ? wanted : 0;
    }
    int64_t *given = malloc(((size_t)2 * most + draws) * sizeof(int64_t)), *positions = given + most, *drawn = positions + most;
    if (!cache->logits || !given || !make_room(cache, most, threads)) {
        free(given);
        return 0;
    }
    float *logits = cache->logits, *causal = logits + (size_t)most * vocab;
    for (int i = 0; i < unseen * unseen; i++) causal[i] = i % unseen <= i / unseen ? 0.0f : -__builtin_inff();
    Pass pass = {.length = length, .rows = unseen, .last = unseen, .ids = given, .positions = positions, .tail = causal, .logits = logits};
    double began = 0.0;

#pragma omp parallel num_threads(threads) reduction(| : failed)
    for (int depth = 0; depth < levels; depth++) {
        const Level *level = all + depth;
        const int rows = level->forwarded, widest = level->widest;
#pragma omp single
        {
            began = now();
            if (depth) {
                pass.length += pass.rows;
                pass.last = depth == 1 ? 1 + rows : pass.last + rows;
                pass.rows = rows;
                pass.tail = level->tail;
            }
            pass.keep = rows;
            for (int i = 0; i < pass.rows; i++) {
                given[i] = depth ? tokens[level->nodes[i]] : ids[i];
                positions[i] = depth ? place + depth : place - unseen + 1 + i;
                if (positions[i] >= limit) positions[i] = limit - 1;
            }
            prepare(cache, &pass);
        }
        run(cache, &pass);
#pragma omp barrier
#pragma omp master
        *seconds += now() - began;
#pragma omp for
        for (int row = 0; row < rows; row++) {
            const float *from = logits + (size_t)row * vocab;
            float *to = probs + row * size;
            for (int i = 0; i < widest; i++) drawn[row * widest + i] = 0;
            if (!rows_soften_one(from, size, inverse, to)) {
                failed |= 2;
            } else {
                failed |= (uniforms ? rows_draw(to, 1, size, widest, replace, uniforms + (size_t)row * widest, drawn + row * widest)
                                    : rows_largest(to, 1, size, widest, drawn + row * widest)) < 0;
            }
        }
#pragma omp single
        {
            for (int row = 0, child = level->first_child; row < rows; row++)
                for (int rank = 0; rank < level->counts[row]; rank++, child++) {
                    tokens[child] = drawn[row * widest + rank];
                    chances[child] = probs[row * size + tokens[child]];
                }
            probs += rows * size;
            if (uniforms) uniforms += (size_t)rows * widest;
        }
    }
    free(given);
    return failed & 2 ? -1 : !failed;
}

// Move slot start + slots[i] to start + i; slots increase.
void sequoia_keep(Cache *cache, int start, const int64_t *slots, int count) {
    const Shape *shape = &cache->model->shape;
    const int size = shape->head_size;
    for (int head = 0; head < shape->layers * shape->key_heads; head++) {
        bf16 *values = cache->values + (size_t)head * cache->capacity * size;
        uint32_t *keys = (uint32_t *)(cache->keys + (size_t)head * cache->capacity * size);
        for (int i = 0; i < count; i++) {
            const int from = start + (int)slots[i], to = start + i;
            if (from == to) continue;
            for (int j = 0; j < size / 2; j++)
                keys[(size_t)(to / 16) * 8 * size + j * 16 + to % 16] =
                    keys[(size_t)(from / 16) * 8 * size + j * 16 + from % 16];
            for (int j = 0; j < size / 16; j++) {
                __m512i pair = _mm512_loadu_si512(values + value_pair(from, j, size));
                pair = from % 2 ? _mm512_srli_epi32(pair, 16) : pair;
                _mm512_mask_storeu_epi16(values + value_pair(to, j, size), to % 2 ? 0xaaaaaaaa : 0x55555555,
                                         to % 2 ? _mm512_slli_epi32(pair, 16) : pair);
            }
        }
    }
}
