// A whole decoder pass in one call on x86 processors, for Llama and related models (with optional biases on query, key
// and value, and optional norms on query and key).
//
// With a small model on a CPU, PyTorch spends most of a pass between its kernels. Here a pass is one parallel region
// that takes as long as reading the weights once. Weights and cache are bfloat16, everything else is float32.
// -DPRODUCTS names the file with the products of an instruction set; the rest is shared.
//
// Every row of the result depends only on the tokens that the row sees, bit for bit: each product is summed in the same
// order for any number of rows, and attention sums over the visible keys in the order of their positions, wherever they
// are in the cache. So a token gets the same logits alone, in a chain or in a tree. (Arithmetic functions with several
// callers are never inlined, since inlined copies could round differently.)
//
// Built by compile_c.py together with sampling_ops.c. For tests on processors without AMX or bfloat16 products,
// amx_emulation.h is included first; before you use another such instruction here, add it there.
// Shapes: q = number of new tokens, D = hidden size, I = inner size of the MLP, H = number of query heads, K = number
// of key heads, d = head size, V = vocabulary size.

#include <immintrin.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include PRODUCTS
#include "tree_expansion.h"

#define ONE_COPY __attribute__((noinline))
#define MOST_STATES 16

int rows_softmax_one(const float *, int64_t, float, float *);  // see sampling_ops.c
int rows_largest(const float *, int64_t, int64_t, int64_t, int64_t *);
int rows_cut_one(const float *, int64_t, int64_t, double, float *);
int rows_draw(const float *, const float *, int64_t, int64_t, int64_t, int, const double *, int64_t *);

typedef struct {
    int32_t hidden, inner, layers, heads, key_heads, head_size, vocab, context;
    int32_t four_bits;  // of streamed layers: 0 for bfloat16; for 4 bits, the number of weights per scale in a row,
    float eps;          // a multiple of 32, or -1 for whole rows
    int32_t outputs;    // number of rows of the output layer: V, or fewer if `tokens` is set
    int32_t draft_head; // bits: 1 draft head, 2 its residual is the normalized feature, 4 its outputs are fed back after the final norm
} LlamaShape;

typedef struct {  // a tiled matrix [n, k]: [groups of 32 columns][k / 32][2 tiles]
    bf16 *tiles;
    int n, k;
    int shared;  // for 4 bits (tiles are computed by `expand`): number of weights along K per scale; otherwise 0
    bf16 *room;  // memory for tiles computed by `expand`: [threads][32 k]
    const int32_t *to;  // the column of each result; NULL for the identity
} Matrix;

typedef struct {
    Matrix project, output, gate_up, down;
} Layer;

typedef struct {
    LlamaShape shape;
    const float *cosines, *sines, *norms;  // [context, d / 2] twice, [2 * layers + 1, D], owned by the caller
    const float *biases, *head_norms;      // [layers, (H + 2 K) d], [layers, 2, d] (query, key), owned by the caller; NULL if absent
    const float *feature_norm;             // [D], of a draft head; otherwise NULL
    Layer *layers;          // NULL if the layers are streamed, see `sequoia_layer`
    Matrix head;
    bf16 *memory;           // all packed weights followed by the embedding; NULL if the caller owns them
    const bf16 *embedding;  // [V, D]; NULL if tied to the output layer, whose tiles then provide the rows
    size_t bytes;
} Model;

typedef struct {  // one pass: `rows` new tokens after `length` cached ones
    int length, rows, last, keep;
    const int64_t *ids, *positions;
    const float *mask;  // [rows, last]: mask over the last `last` slots, including the new ones
} Pass;

typedef struct {
    const Model *model;
    Pass pass;           // the pass in progress, see `sequoia_enter`
    int capacity;        // number of slots, a multiple of 32
    size_t bytes;        // size of the keys; the values have the same size
    bf16 *keys;          // [layers][K][capacity / 16][d / 2][16][2]: 16 adjacent keys, two entries of each side by side
    bf16 *values;        // [layers][K][capacity / 32][d / 16][16][16][2]: two slots side by side, 32 slots per tile
    int rows, threads;   // capacity of the scratch memory below
    float *hidden, *projected, *scores;                // [q, D], [q, (H + 2 K) d], [threads, 16, capacity]
    activation *input, *attended, *inner, *weights;    // tiled, see `place`; `weights`: of attention, per thread
    int32_t *seen, *seen_start, *run;                  // see `prepare`
    bf16 *room;          // see `Matrix`
    float *logits;       // of the tree level being drafted
    size_t logits_size;
    int states;          // length of `numbers`
    int32_t numbers[MOST_STATES];  // indices of the hidden states to record: i for the output of layer i, 0 for the embedding
    float *kept;         // [q, states, D]: receives the recorded states; owned by the caller
    const float *given;  // of a draft head, [capacity, D]: by position, the previous token's feature; owned by the caller
    float *own;          // of a draft head, [capacity, D]: by slot, the output, which is the feature of drafted children
    const int32_t *known;  // the last position with a feature in `given`; owned by the caller
} Cache;

// ---- memory

static size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

#ifdef __SANITIZE_ADDRESS__  // allocates exactly, so that accesses beyond the requested bytes are detected
static void *take(size_t bytes) {
    void *memory = aligned_alloc(64, round_up(bytes ? bytes : 1, 64));
    return memory ? memset(memory, 0, bytes) : NULL;
}

static void give(void *memory, size_t bytes) { free(memory); }
#else
static void *take(size_t bytes) {  // zeroed memory, in huge pages if the system grants them
    bytes = round_up(bytes ? bytes : 1, (size_t)1 << 21);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static void give(void *memory, size_t bytes) {
    if (memory) munmap(memory, round_up(bytes ? bytes : 1, (size_t)1 << 21));
}
#endif

static ONE_COPY float inverse_root_mean_square(const float *row, int size, float eps) {
    floats sum = {0};
    for (int i = 0; i < size; i += LANES) {
        const floats x = load(row + i);
        sum += x * x;
    }
    return 1.0f / __builtin_sqrtf(total(sum) / (float)size + eps);
}

// Normalize a row and store it in row `at` of activations [rows, k], starting at `column`.
static ONE_COPY void normalise(activation *to, int at, int column, int k, const float *row, const float *weight, int size,
                               float eps) {
    const float scale = inverse_root_mean_square(row, size, eps);
    for (int i = 0; i < size; i += LANES)
        keep_activation(to + place(at, column + i, k), load(row + i) * scale * load(weight + i));
}

// ---- tiled weights and products

// Copy rows [from, from + 16) of an [n, k] matrix into one column of tiles; rows beyond n are zero.
static void pack_block(bf16 *tiles, const bf16 *weight, int n, int k, int from) {
    for (int step = 0; step < k / DEEP; step++)
        for (int column = 0; column < ROWS; column++)
            for (int i = 0; i < DEEP; i++)
                tiles[(size_t)step * GROUP * TILE + i / 2 * 32 + column * 2 + i % 2] =
                    from + column < n ? weight[(size_t)(from + column) * k + step * DEEP + i] : 0;
}

// Copy `rows` rows into the tiles of a matrix, starting at a given column of tiles.
static void pack(bf16 *tiles, const bf16 *weight, int rows, int k) {
    for (int block = 0; block < (int)(round_up(rows, WIDE) / ROWS); block++)
        pack_block(tiles + (size_t)(block / GROUP) * (k / DEEP) * GROUP * TILE + block % GROUP * TILE, weight, rows, k,
                   block * ROWS);
}

// Interleave gate and up: each group consists of 16 columns of gate and the same 16 columns of up.
static void pack_pair(bf16 *tiles, const bf16 *gate, const bf16 *up, int rows, int k) {
    for (int group = 0; group < rows / ROWS; group++)
        for (int block = 0; block < GROUP; block++)
            pack_block(tiles + (size_t)group * (k / DEEP) * GROUP * TILE + block * TILE, block ? up : gate, rows, k,
                       group * ROWS);
}

// Return the number of 16-bit entries in 32 columns of a matrix.
static size_t columns_size(const Matrix *matrix) {
    const int k = matrix->k, shared = matrix->shared;
    return shared ? (size_t)(k / shared) * (WIDE * 6 + WIDE / 2 * shared) / 2 : (size_t)(k / DEEP) * GROUP * TILE;
}

// Set up a matrix whose tiles or 4-bit weights are at `memory`; return the address of the next matrix.
static bf16 *lay(Matrix *matrix, bf16 *memory, int n, int k, int four_bits) {
    *matrix = (Matrix){memory, n, k, four_bits < 0 ? k : four_bits, NULL, NULL};
    return memory + round_up(n, WIDE) / WIDE * columns_size(matrix);
}

// Return the input width of the first layer: a draft head reads the token's embedding and the feature.
static int first_width(const LlamaShape *shape) { return shape->draft_head ? 2 * shape->hidden : shape->hidden; }

// Set up a layer's consecutive matrices; `width` is its input width.
static bf16 *lay_layer(Layer *layer, bf16 *memory, const LlamaShape *shape, int width) {
    const int D = shape->hidden, I = shape->inner, d = shape->head_size, H = shape->heads, K = shape->key_heads;
    memory = lay(&layer->project, memory, (H + 2 * K) * d, width, shape->four_bits);
    memory = lay(&layer->output, memory, D, H * d, shape->four_bits);
    memory = lay(&layer->gate_up, memory, 2 * I, D, shape->four_bits);
    return lay(&layer->down, memory, D, I, shape->four_bits);
}

// Round 16 finite numbers to bfloat16 in the upper half of each lane, to nearest even.
static inline ints upper_half(floats x) {
    const ints bits = (ints)x;
    return (bits + 0x7fff + ((bits >> 16) & 1)) & (int)0xffff0000;
}

// Expand 32 4-bit columns to tiles. Each run of `shared` weights along K is preceded by scales, float32 [32], and
// zeros, uint16 [32]; the weights follow tile by tile, int32 [4][16 columns]: each integer packs 8 weights of a column,
// the first in the lowest bits. A weight is (q - zero) * scale, rounded once.
static ONE_COPY const bf16 *expand(bf16 *tiles, const bf16 *from, int k, int shared) {
    ints *to = (ints *)tiles;
    for (int first = 0; first < k; first += shared) {
        const float *scales = (const float *)from;
        const shorts *zeros = (const shorts *)(from + WIDE * 2);
        const ints *words = (const ints *)(from + WIDE * 3);
        for (int tile = 0; tile < shared / DEEP * GROUP; tile++) {
            const floats scale = load(scales + tile % GROUP * ROWS);
            const ints zero = __builtin_convertvector(zeros[tile % GROUP], ints);
            for (int word = 0; word < 4; word++) {
                const ints eight = *words++;
                _Pragma("GCC unroll 4") for (int pair = 0; pair < 4; pair++) {
                    const floats low = __builtin_convertvector((eight >> 8 * pair & 15) - zero, floats) * scale;
                    const floats high = __builtin_convertvector((eight >> (8 * pair + 4) & 15) - zero, floats) * scale;
                    *to++ = upper_half(high) | (upper_half(low) >> 16 & 0xffff);
                }
            }
        }
        from = (const bf16 *)words;
    }
    return tiles;
}

static void pack_layer(const Layer *layer, const bf16 *const *weights, const LlamaShape *shape) {
    pack(layer->project.tiles, weights[0], layer->project.n, layer->project.k);
    pack(layer->output.tiles, weights[1], shape->hidden, layer->output.k);
    pack_pair(layer->gate_up.tiles, weights[2], weights[3], shape->inner, shape->hidden);
    pack(layer->down.tiles, weights[4], shape->hidden, shape->inner);
}

enum Then { STORE, ADD, GATE };

static const bf16 *first_tiles(const Matrix *matrix) {  // the first tiles of this thread's share
    const int groups = (matrix->n + WIDE - 1) / WIDE, thread = omp_get_thread_num(), threads = omp_get_num_threads();
    return matrix->tiles + (size_t)(groups * thread / threads) * columns_size(matrix);
}

// Compute this thread's share of the product of a [rows, k] and a matrix. `a` and the results of GATE are tiled, other
// results row-major. While many rows are multiplied by a group, the next group is prefetched; during the last group,
// the first one of the matrix `after`.
static ONE_COPY void multiply(const Matrix *matrix, const activation *a, int rows, enum Then then, void *out, int width,
                              const Matrix *after) {
    const int k = matrix->k, groups = (matrix->n + WIDE - 1) / WIDE, shared = matrix->shared;
    const size_t size = columns_size(matrix);
    const int thread = omp_get_thread_num(), threads = omp_get_num_threads(), stop = groups * (thread + 1) / threads;
    const int batches = rows > ROWS ? (rows + BATCH - 1) / BATCH : 1;
    const int lines = shared ? 0 : (GROUP * TILE / 32 + batches - 1) / batches;  // `expand` has already read 4-bit weights
    const bf16 *tiles = first_tiles(matrix);
    bf16 *room = shared ? matrix->room + (size_t)thread * WIDE * k : NULL;
    float c[BATCH * WIDE] __attribute__((aligned(64)));
    for (int group = groups * thread / threads; group < stop; group++, tiles += size) {
        const bf16 *ahead = group + 1 < stop ? tiles + size : first_tiles(after);
        const bf16 *columns = shared ? expand(room, tiles, k, shared) : tiles;
        for (int first = 0; first < rows; first += BATCH, ahead += (size_t)(k / DEEP) * lines * 32) {
            const int count = rows - first < BATCH ? rows - first : BATCH;
            product(c, a + (size_t)first * k, count, columns, k, ahead, lines);
            for (int row = 0; row < count; row++) {
                const float *from = c + row * WIDE;
                if (then == GATE) {
                    const floats gate = load(from), up = load(from + ROWS), minus = -gate, most = fill(80.0f);
                    const floats low = exponential(pick(minus > most, most, minus));  // above 80 it rounds to 0
                    keep_activation((activation *)out + place(first + row, group * ROWS, width), gate / (1.0f + low) * up);
                    continue;
                }
                const int left = matrix->n - group * WIDE;
                if (matrix->to) {
                    float *line = (float *)out + (size_t)(first + row) * width;
                    for (int i = 0; i < WIDE && i < left; i++) line[matrix->to[group * WIDE + i]] = from[i];
                    continue;
                }
                float *to = (float *)out + (size_t)(first + row) * width + group * WIDE;
                for (int i = 0; i < WIDE && i < left; i += LANES) {
                    if (left - i < LANES) {
                        for (int lane = 0; lane < left - i; lane++)
                            to[i + lane] = from[i + lane] + (then == ADD ? to[i + lane] : 0.0f);
                    } else {
                        floats found = load(from + i);
                        if (then == ADD) found += load(to + i);
                        store(to + i, found);
                    }
                }
            }
        }
    }
}

// ---- attention

// Rotate one head of d entries by its position.
static ONE_COPY void rotate(float *to, const float *x, const float *cosine, const float *sine, int size) {
    const int half = size / 2;
    for (int i = 0; i < half; i += LANES) {
        const floats a = load(x + i), b = load(x + half + i), c = load(cosine + i), s = load(sine + i);
        store(to + i, a * c - b * s);
        store(to + half + i, b * c + a * s);
    }
}

// Extract a query or key from a row's projection and apply its bias, norm and rotation.
static void rotated_head(float *to, const Model *model, int layer, const float *projected, int head, int64_t position) {
    const LlamaShape *shape = &model->shape;
    const int size = shape->head_size, width = (shape->heads + 2 * shape->key_heads) * size;
    const size_t angle = (size_t)position * (size / 2);
    const float *from = projected + head * size;
    float line[LARGEST_HEAD] __attribute__((aligned(64)));
    if (model->biases) {
        const float *bias = model->biases + (size_t)layer * width + head * size;
        for (int i = 0; i < size; i += LANES) store(line + i, load(from + i) + load(bias + i));
        from = line;
    }
    if (model->head_norms) {
        const float *weight = model->head_norms + (2 * (size_t)layer + (head >= shape->heads)) * size;
        const float scale = inverse_root_mean_square(from, size, shape->eps);
        for (int i = 0; i < size; i += LANES) store(line + i, load(from + i) * scale * load(weight + i));
        from = line;
    }
    rotate(to, from, model->cosines + angle, model->sines + angle, size);
}

static void store_key(bf16 *keys, const float *key, int slot, int size) {
    bf16 line[LARGEST_HEAD] __attribute__((aligned(64)));
    for (int i = 0; i < size; i += LANES) narrow(line + i, load(key + i));
    bf16 *to = keys + (size_t)(slot / 16) * 16 * size + slot % 16 * 2;
    for (int i = 0; i < size; i += 2) memcpy(to + 16 * i, line + i, 2 * sizeof(bf16));
}

static void store_value(bf16 *values, const float *value, const float *bias, int slot, int size) {
    for (int i = 0; i < size; i += LANES) {
        bf16 line[LANES], *to = values + value_pair(slot, i / LANES, size) + slot % 2;
        floats found = load(value + i);
        if (bias) found += load(bias + i);
        narrow(line, found);
        for (int lane = 0; lane < LANES; lane++) to[2 * lane] = line[lane];
    }
}

// Compute this thread's share of the new rows' keys and values, head by head.
static void store_new(Cache *cache, int layer, const int64_t *positions, int rows, int length) {
    const Model *model = cache->model;
    const LlamaShape *shape = &model->shape;
    const int size = shape->head_size, heads = shape->heads, key_heads = shape->key_heads;
    const int width = (heads + 2 * key_heads) * size, thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const float *bias = model->biases ? model->biases + (size_t)layer * width + (heads + key_heads) * size : NULL;
    const int64_t all = (int64_t)key_heads * rows;
    for (int64_t i = all * thread / threads; i < all * (thread + 1) / threads; i++) {
        const int head = (int)(i / rows), row = (int)(i % rows);
        const float *projected = cache->projected + (size_t)row * width;
        const size_t at = ((size_t)layer * key_heads + head) * cache->capacity * size;
        float key[LARGEST_HEAD] __attribute__((aligned(64)));
        rotated_head(key, model, layer, projected, heads + head, positions[row]);
        store_key(cache->keys + at, key, length + row, size);
        store_value(cache->values + at, projected + (size_t)(heads + key_heads + head) * size,
                    bias ? bias + head * size : NULL, length + row, size);
    }
}

// Turn one row's scores into weights relative to the largest, padded to 32 keys; return their sum. The weights are
// stored tiled.
static ONE_COPY float softmax(activation *weights, float *scores, int count, float scale) {
    const int padded = (int)round_up(count, DEEP);
    for (int i = count; i < padded; i++) scores[i] = -__builtin_inff();
    floats top = fill(-__builtin_inff()), sum = {0};
    for (int i = 0; i < padded; i += LANES) {
        const floats x = load(scores + i);
        top = pick(x > top, x, top);
    }
    const float highest = largest(top);
    for (int i = 0; i < padded; i += LANES) {
        const floats x = exponential((load(scores + i) - highest) * scale);  // negligible, 1e-30, beyond `count`
        keep_activation(weights + place(0, i, padded), x);
        sum += x;
    }
    return total(sum);
}

// Compute attention for one key head and the query heads that share it, for up to 16 of their rows, starting at `first`
// (rows are ordered by token, then by head). Every row sees the first `prefix` slots; in addition, row r sees the slots
// seen[seen_start[r]] to seen[seen_start[r + 1] - 1], in the order of their positions.
static void attend(Cache *cache, int layer, int head, int first, const int64_t *positions, int rows, int length,
                   int prefix) {
    const Model *model = cache->model;
    const LlamaShape *shape = &model->shape;
    const int size = shape->head_size, share = shape->heads / shape->key_heads, blocks = (length + rows + DEEP - 1) / DEEP;
    const int width = (shape->heads + 2 * shape->key_heads) * size, stride = cache->capacity;
    const size_t at = ((size_t)layer * shape->key_heads + head) * cache->capacity * size;
    const bf16 *keys = cache->keys + at, *values = cache->values + at;
    const float scale = 1.0f / __builtin_sqrtf((float)size);
    float *scores = cache->scores + (size_t)omp_get_thread_num() * ROWS * stride;
    activation *weights = cache->weights + (size_t)omp_get_thread_num() * ROWS * stride;
    activation queries[ROWS * LARGEST_HEAD] __attribute__((aligned(64)));
    float sums[ROWS * LARGEST_HEAD] __attribute__((aligned(64))), totals[ROWS];
    const int count = rows * share - first < ROWS ? rows * share - first : ROWS;

    for (int r = 0; r < count; r++) {
        const int row = (first + r) / share, query = head * share + (first + r) % share;
        float line[LARGEST_HEAD] __attribute__((aligned(64)));
        rotated_head(line, model, layer, cache->projected + (size_t)row * width, query, positions[row]);
        for (int i = 0; i < size; i += LANES) keep_activation(queries + place(r, i, size), load(line + i));
    }
    score(scores, stride, queries, count, keys, blocks, size);
    int run = INT32_MAX;
    for (int r = 0; r < count; r++) {
        const int row = (first + r) / share, start = cache->seen_start[row], more = cache->seen_start[row + 1] - start;
        float *line = scores + (size_t)r * stride;
        for (int i = 0; i < more; i++) line[prefix + i] = line[cache->seen[start + i]];  // no slot here is below `prefix`
        if (shape->draft_head && positions[row]) line[0] = -__builtin_inff();  // the first token has no feature, so hide it
        totals[r] = softmax(weights + r * DEEP, line, prefix + more, scale);
        run = cache->run[row] < run ? cache->run[row] : run;
    }
    const int shared = (prefix + run) / DEEP;  // number of slot blocks that all these rows see; large for a prompt
    weigh(sums, weights, count, values, shared, size);
    for (int r = 0; r < count; r++) {
        const int row = (first + r) / share, query = head * share + (first + r) % share;
        const int32_t *seen = cache->seen + cache->seen_start[row];
        const int all = prefix + cache->seen_start[row + 1] - cache->seen_start[row];
        for (int from = shared * DEEP; from < all; from += DEEP) {
            int32_t slots[DEEP];
            const int here = all - from < DEEP ? all - from : DEEP;
            for (int i = 0; i < here; i++) slots[i] = from + i < prefix ? from + i : seen[from + i - prefix];
            weigh_some(sums + r * size, weights + (size_t)from * ROWS + r * DEEP, values, slots, here, size);
        }
        const float inverse = 1.0f / totals[r];
        for (int i = 0; i < size; i += LANES)
            keep_activation(cache->attended + place(row, query * size + i, shape->heads * size),
                            load(sums + r * size + i) * inverse);
    }
}

// Compute this thread's share of the attention of all new rows.
static void attend_all(Cache *cache, int layer, const int64_t *positions, int rows, int length, int prefix) {
    const LlamaShape *shape = &cache->model->shape;
    const int share = shape->heads / shape->key_heads, thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const int parts = (rows * share + ROWS - 1) / ROWS, all = shape->key_heads * parts;
    for (int i = (int)((int64_t)all * thread / threads); i < (int)((int64_t)all * (thread + 1) / threads); i++)
        attend(cache, layer, i / parts, i % parts * ROWS, positions, rows, length, prefix);
}

// ---- functions called from Python

int sequoia_supported(void) { return granted(); }  // returns 0 if the system does not grant the matrix unit's registers

// Return the size of one packed layer, or of the packed output layer, in bytes.
int64_t sequoia_layer_bytes(const LlamaShape *shape) {
    Layer layer;
    return (lay_layer(&layer, NULL, shape, shape->hidden) - (bf16 *)NULL) * (int64_t)sizeof(bf16);
}

int64_t sequoia_head_bytes(const LlamaShape *shape) {
    Matrix head;
    return (lay(&head, NULL, shape->outputs, shape->hidden, 0) - (bf16 *)NULL) * (int64_t)sizeof(bf16);
}

// weights: query, key and value joined, [(H + 2 K) d, D], then output, gate, up and down; row-major bfloat16.
void sequoia_pack_layer(const LlamaShape *shape, const bf16 *const *weights, bf16 *to) {
    Layer layer;
    lay_layer(&layer, to, shape, shape->hidden);
    pack_layer(&layer, weights, shape);
}

// Pack rows of the output layer into tiles; the number of rows is a multiple of 32, except in the last call.
void sequoia_pack_rows(const bf16 *weight, int rows, int k, bf16 *to) { pack(to, weight, rows, k); }

static Model *new_model(const LlamaShape *shape, const float *cosines, const float *sines, const float *norms,
                        const float *biases, const float *head_norms) {
    Model *model = calloc(1, sizeof *model);
    if (!model) return NULL;
    model->shape = *shape;
    model->cosines = cosines, model->sines = sines, model->norms = norms;
    model->biases = biases, model->head_norms = head_norms;
    return model;
}

// weights: those of each layer, as in `sequoia_pack_layer`, then the output layer. feature_norm: of a draft head;
// tokens [outputs]: the tokens of its output layer, NULL for all tokens. The caller owns both.
Model *sequoia_model(const LlamaShape *shape, const bf16 *embedding, const float *cosines, const float *sines,
                     const float *norms, const float *biases, const float *head_norms, const bf16 *const *weights,
                     const float *feature_norm, const int32_t *tokens) {
    Model *model = new_model(shape, cosines, sines, norms, biases, head_norms);
    if (!model) return NULL;
    const size_t words = (size_t)shape->vocab * shape->hidden;
    Layer first;
    const size_t wide = lay_layer(&first, NULL, shape, first_width(shape)) - (bf16 *)NULL;
    model->bytes = (shape->layers - 1) * sequoia_layer_bytes(shape) + sequoia_head_bytes(shape) +
                   (wide + words) * sizeof(bf16);
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
        next = lay_layer(&model->layers[i], next, shape, i ? shape->hidden : first_width(shape));
        pack_layer(&model->layers[i], weights, shape);
    }
    next = lay(&model->head, next, shape->outputs, shape->hidden, 0);
    pack(model->head.tiles, weights[0], shape->outputs, shape->hidden);
    model->head.to = tokens, model->feature_norm = feature_norm;
    model->embedding = memcpy(next, embedding, words * sizeof(bf16));
    return model;
}

// Create a model with streamed layers. head: the packed output layer; embedding: its rows, or NULL if tied to the
// output layer. The caller owns both.
Model *sequoia_streamed_model(const LlamaShape *shape, const bf16 *embedding, const float *cosines, const float *sines,
                              const float *norms, const float *biases, const float *head_norms, bf16 *head) {
    Model *model = new_model(shape, cosines, sines, norms, biases, head_norms);
    if (!model) return NULL;
    lay(&model->head, head, shape->outputs, shape->hidden, 0);
    model->embedding = embedding;
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
    const LlamaShape *shape = &model->shape;
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
    free(cache->inner), free(cache->weights), free(cache->seen), free(cache->seen_start), free(cache->run), free(cache->room);
    cache->hidden = cache->projected = cache->scores = NULL;
    cache->input = cache->attended = cache->inner = cache->weights = NULL;
    cache->seen = cache->seen_start = cache->run = NULL;
    cache->room = NULL;
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
    const LlamaShape *shape = &cache->model->shape;
    if (rows <= cache->rows && threads <= cache->threads) return 1;
    rows = rows > cache->rows ? rows : cache->rows;
    free_scratch(cache);
    const size_t count = round_up(rows, 2 * ROWS), size = shape->head_size;
#define ROOM(type, entries) aligned_alloc(64, round_up((entries) * sizeof(type), 64))
    cache->hidden = ROOM(float, count * shape->hidden);
    cache->projected = ROOM(float, count * (shape->heads + 2 * shape->key_heads) * size);
    cache->scores = ROOM(float, (size_t)threads * ROWS * cache->capacity);
    cache->weights = ROOM(activation, (size_t)threads * ROWS * cache->capacity);
    cache->input = ROOM(activation, count * first_width(shape));
    cache->attended = ROOM(activation, count * shape->heads * size);
    cache->inner = ROOM(activation, count * shape->inner);
    cache->seen = ROOM(int32_t, (size_t)rows * cache->capacity);
    cache->seen_start = ROOM(int32_t, rows + 1);
    cache->run = ROOM(int32_t, rows);
    const int queries = shape->heads * shape->head_size, deep = shape->hidden > shape->inner ? shape->hidden : shape->inner;
    if (shape->four_bits) cache->room = ROOM(bf16, (size_t)threads * WIDE * (queries > deep ? queries : deep));
#undef ROOM
    if (!cache->hidden || !cache->projected || !cache->scores || !cache->input || !cache->attended || !cache->inner ||
        !cache->weights || !cache->seen || !cache->seen_start || !cache->run || (shape->four_bits && !cache->room)) {
        free_scratch(cache);
        return 0;
    }
    memset(cache->input, 0, count * first_width(shape) * sizeof(activation));  // padding rows are multiplied too
    memset(cache->attended, 0, count * shape->heads * size * sizeof(activation));
    memset(cache->inner, 0, count * shape->inner * sizeof(activation));
    cache->rows = rows, cache->threads = threads;
    return 1;
}

// Record which of the last slots each row sees, and how many of them it sees without a gap. One thread calls this,
// after `make_room` has made room for that many rows.
static void prepare(Cache *cache, const Pass *pass) {
    int32_t *seen = cache->seen;
    const int prefix = pass->length + pass->rows - pass->last;
    for (int row = 0; row < pass->rows; row++) {
        const float *mask = pass->mask + (size_t)row * pass->last;
        int run = 0;
        while (run < pass->last && mask[run] == 0.0f) run++;
        cache->run[row] = run;
        cache->seen_start[row] = (int32_t)(seen - cache->seen);
        for (int i = 0; i < pass->last; i++)
            if (mask[i] == 0.0f) *seen++ = prefix + i;
    }
    cache->seen_start[pass->rows] = (int32_t)(seen - cache->seen);
}

// Every thread of a parallel region calls the first of these before its share of a pass and the second after it.
static unsigned begin(void) {
    const unsigned control = _mm_getcsr();
    _mm_setcsr(control | 0x8040);  // flush denormals to 0, as the matrix unit does
    begin_products();
    return control;
}

static void end(unsigned control) {
    end_products();
    _mm_setcsr(control);
}

static void embedding_row(float *to, const Model *model, int64_t id) {
    const int D = model->shape.hidden;
    if (model->embedding) {
        const bf16 *from = model->embedding + (size_t)id * D;
        for (int i = 0; i < D; i += LANES) store(to + i, widen(from + i));
        return;
    }
    const bf16 *tiles = model->head.tiles + (size_t)(id / WIDE) * (D / DEEP) * GROUP * TILE + id % WIDE / ROWS * TILE;
    for (int i = 0; i < D; i++) {
        const bf16 *pair = tiles + (size_t)(i / DEEP) * GROUP * TILE + i % DEEP / 2 * 32 + id % ROWS * 2;
        const uint32_t bits = (uint32_t)pair[i % 2] << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
}

// Record this thread's share of the hidden states after `layers` layers, if requested.
static void keep_states(const Cache *cache, const Pass *pass, int number) {
    const size_t D = cache->model->shape.hidden;
    for (int i = 0; i < cache->states; i++)
        for (int row = omp_get_thread_num(); cache->numbers[i] == number && row < pass->rows; row += omp_get_num_threads())
            memcpy(cache->kept + ((size_t)row * cache->states + i) * D, cache->hidden + row * D, D * sizeof(float));
}

// Make all subsequent passes record these states.
void sequoia_keep_states(Cache *cache, int states, const int32_t *numbers, float *to) {
    cache->states = states < MOST_STATES ? states : MOST_STATES;
    memcpy(cache->numbers, numbers, cache->states * sizeof *numbers);
    cache->kept = to;
}

// Set the memory from which passes of a draft head read features and to which they write outputs.
void sequoia_features(Cache *cache, const float *given, float *own, const int32_t *known) {
    cache->given = given, cache->own = own, cache->known = known;
}

// Store a row, normalized if a norm is given.
static ONE_COPY void copy_row(float *to, const float *from, const float *norm, int size, float eps) {
    const float scale = norm ? inverse_root_mean_square(from, size, eps) : 1.0f;
    for (int i = 0; i < size; i += LANES) {
        floats found = load(from + i);
        if (norm) found *= scale * load(norm + i);
        store(to + i, found);
    }
}

// Store a token's embedding and feature as the input to a draft head's first layer; the feature becomes the hidden
// state.
static void embed_with_feature(Cache *cache, const Pass *pass, int row) {
    const Model *model = cache->model;
    const LlamaShape *shape = &model->shape;
    const int D = shape->hidden, slot = pass->length + row, start = cache->seen_start[row], stop = cache->seen_start[row + 1];
    const int parent = stop - start > 1 ? cache->seen[stop - 2] : pass->length + pass->rows - pass->last - 1;
    const float *own = cache->own + (size_t)(parent < 0 ? 0 : parent) * D;  // a token that sees nothing has no parent
    const float *feature = slot <= *cache->known ? cache->given + (size_t)slot * D : own;
    float *hidden = cache->hidden + (size_t)row * D;
    embedding_row(hidden, model, pass->ids[row]);
    normalise(cache->input, row, 0, 2 * D, hidden, model->norms, D, shape->eps);
    normalise(cache->input, row, D, 2 * D, feature, model->feature_norm, D, shape->eps);
    copy_row(hidden, feature, shape->draft_head & 2 ? model->feature_norm : NULL, D, shape->eps);
}

// Write this thread's share of a draft head's feedback, and clear the rows of logits that its output layer fills only
// partly.
static void keep_own(Cache *cache, const Pass *pass, float *logits) {
    const Model *model = cache->model;
    const LlamaShape *shape = &model->shape;
    const int D = shape->hidden, thread = omp_get_thread_num(), count = omp_get_num_threads();
    const float *norm = shape->draft_head & 4 ? model->norms + (size_t)2 * shape->layers * D : NULL;
    for (int row = thread; row < pass->rows; row += count)
        copy_row(cache->own + (size_t)(pass->length + row) * D, cache->hidden + (size_t)row * D, norm, D, shape->eps);
    for (int row = thread; model->head.to && row < pass->keep; row += count)
        for (int i = 0; i < shape->vocab; i++) logits[(size_t)row * shape->vocab + i] = -__builtin_inff();
}

// Store this thread's share of the new tokens' embeddings, normalized for the first layer.
static ONE_COPY void embed(Cache *cache, const Pass *pass) {
    const Model *model = cache->model;
    const int D = model->shape.hidden, rows = pass->rows, thread = omp_get_thread_num(), count = omp_get_num_threads();
    if (model->embedding)
        for (int row = thread; row < rows; row += count)
            for (int i = 0; i < D; i += 32)
                _mm_prefetch((const char *)(model->embedding + (size_t)pass->ids[row] * D + i), _MM_HINT_T0);
    for (int row = thread; row < rows; row += count) {
        if (model->shape.draft_head) {
            embed_with_feature(cache, pass, row);
            continue;
        }
        float *to = cache->hidden + (size_t)row * D;
        embedding_row(to, model, pass->ids[row]);
        normalise(cache->input, row, 0, D, to, model->norms, D, model->shape.eps);
    }
    keep_states(cache, pass, 0);
}

// Run one layer with all threads, from its normalized input to that of the next layer; `after` is the next matrix.
static ONE_COPY void pass_layer(Cache *cache, const Pass *pass, const Layer *layer, int index, const Matrix *after) {
    const Model *model = cache->model;
    const LlamaShape *shape = &model->shape;
    const int D = shape->hidden, width = (shape->heads + 2 * shape->key_heads) * shape->head_size;
    const int rows = pass->rows, prefix = pass->length + rows - pass->last;
    const int thread = omp_get_thread_num(), count = omp_get_num_threads();
    const float *norm = model->norms + (size_t)(2 * index + 1) * D;
    const int first = index + 1 == shape->layers ? rows - pass->keep : 0;  // the last layer skips unrequested rows
#pragma omp barrier
    multiply(&layer->project, cache->input, rows, STORE, cache->projected, width, &layer->output);
#pragma omp barrier
    store_new(cache, index, pass->positions, rows, pass->length);
#pragma omp barrier
    attend_all(cache, index, pass->positions, rows, pass->length, prefix);
#pragma omp barrier
    multiply(&layer->output, cache->attended, rows, ADD, cache->hidden, D, &layer->gate_up);
#pragma omp barrier
    for (int row = thread; row < rows; row += count)
        normalise(cache->input, row, 0, D, cache->hidden + (size_t)row * D, norm, D, shape->eps);
#pragma omp barrier
    multiply(&layer->gate_up, cache->input, rows, GATE, cache->inner, shape->inner, &layer->down);
#pragma omp barrier
    multiply(&layer->down, cache->inner, rows, ADD, cache->hidden, D, after);
#pragma omp barrier
    for (int row = first + thread; row < rows; row += count)
        normalise(cache->input, row - first, 0, D, cache->hidden + (size_t)row * D, norm + D, D, shape->eps);
    keep_states(cache, pass, index + 1);
}

// Every thread of a parallel region calls this with the same pass; `logits` [keep, V] are complete after a barrier.
static void run(Cache *cache, const Pass *pass, float *logits) {
    const Model *model = cache->model;
    const int last = model->shape.layers - 1;
    const unsigned control = begin();
    embed(cache, pass);
    for (int index = 0; index <= last; index++) {
        const Layer *layer = &model->layers[index];
        pass_layer(cache, pass, layer, index, index == last ? &model->head : &layer[1].project);
    }
    if (model->shape.draft_head) keep_own(cache, pass, logits);
#pragma omp barrier
    multiply(&model->head, cache->input, pass->keep, STORE, logits, model->shape.vocab, &model->layers[0].project);
    end(control);
}

// Return whether a pass contains an id or a position outside the model's range.
static int is_outside(const Cache *cache, const Pass *pass) {
    const LlamaShape *shape = &cache->model->shape;
    for (int row = 0; row < pass->rows; row++)
        if (pass->ids[row] < 0 || pass->ids[row] >= shape->vocab || pass->positions[row] < 0 ||
            pass->positions[row] >= shape->context)
            return 1;
    return 0;
}

// Prepare a pass; return 1 on success, 0 if out of memory, -1 for an id or a position out of range.
static int ready(Cache *cache, const Pass *pass, int threads) {
    if (is_outside(cache, pass)) return -1;
    if (!make_room(cache, pass->rows, threads)) return 0;
    prepare(cache, pass);
    return 1;
}

// Append q tokens to a cache of `length` slots and compute logits, float32 [keep, V], of the last rows; return the
// result of `ready`.
// mask: float32 [q, last], 0 where a row sees one of the last slots (including the new ones), otherwise -inf.
int sequoia_forward(Cache *cache, int threads, int length, int rows, const int64_t *ids, const int64_t *positions,
                    int last, const float *mask, int keep, float *logits) {
    const Pass pass = {length, rows, last, keep, ids, positions, mask};
    const int done = ready(cache, &pass, threads);
    if (done != 1) return done;
#pragma omp parallel num_threads(threads)
    run(cache, &pass, logits);
    return 1;
}

// The same pass in parts, for streamed layers: enter, each layer, leave. The arrays that the arguments point to must
// not change until the last layer has run. Returns the same values as `sequoia_forward`.
int sequoia_enter(Cache *cache, int threads, int length, int rows, const int64_t *ids, const int64_t *positions,
                  int last, const float *mask, int keep) {
    cache->pass = (Pass){length, rows, last, keep, ids, positions, mask};
    const int done = ready(cache, &cache->pass, threads);
    if (done != 1) return done;
#pragma omp parallel num_threads(threads)
    {
        const unsigned control = begin();
        embed(cache, &cache->pass);
        end(control);
    }
    return 1;
}

void sequoia_layer(Cache *cache, int threads, int index, bf16 *packed) {
    const Model *model = cache->model;
    Layer layer;
    lay_layer(&layer, packed, &model->shape, model->shape.hidden);
    layer.project.room = layer.output.room = layer.gate_up.room = layer.down.room = cache->room;
#pragma omp parallel num_threads(threads)
    {
        const unsigned control = begin();
        pass_layer(cache, &cache->pass, &layer, index, index + 1 < model->shape.layers ? &layer.project : &model->head);
        end(control);
    }
}

void sequoia_leave(Cache *cache, int threads, float *logits) {
    const Matrix *head = &cache->model->head;
#pragma omp parallel num_threads(threads)
    {
        const unsigned control = begin();
        multiply(head, cache->input, cache->pass.keep, STORE, logits, cache->model->shape.vocab, head);
        end(control);
    }
}

typedef struct {  // one level of a tree: the forwarded nodes and their children
    int32_t forwarded, most_children, first_child, padding;
    const int64_t *nodes, *counts;  // [forwarded]: the nodes, and each node's number of children
    const float *mask;              // [forwarded, slots from the root on]
} Level;

typedef struct {
    int32_t threads, length, unseen, levels, with_replacement, padding;
    const int64_t *ids;                // [unseen]: the last committed tokens, the root last
    int64_t root_position;
    const Level *level;                // [levels]
    int64_t vocab;                     // number of tokens that can be drawn
    float inverse_temperature;
    double top_p;
    int64_t top_k;
    const double *uniforms;            // one per draw; NULL to take the most likely tokens
    float *rows;                       // [forwarded nodes, vocab]: receives the distributions of their children
    float *first_rows;                 // like `rows`, filtered by top-k and top-p, for first children; NULL without filters
    int64_t *tokens;                   // [n]: contains the root, receives the other tokens
    float *probabilities;              // [n]: receives the probabilities of the tokens
    double *seconds;                   // incremented by the duration of the passes
} Draft;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// Allocate memory for passes of at most `most` rows and their logits; return the causal mask for unseen tokens, or NULL
// if out of memory.
static const float *room_to_draft(Cache *cache, int most, int unseen, int threads) {
    const size_t logits = (size_t)most * cache->model->shape.vocab, wanted = logits + (size_t)unseen * unseen;
    if (wanted > cache->logits_size) {
        free(cache->logits);
        cache->logits = malloc(wanted * sizeof(float));
        cache->logits_size = cache->logits ? wanted : 0;
    }
    if (!cache->logits || !make_room(cache, most, threads)) return NULL;
    float *causal = cache->logits + logits;
    for (int i = 0; i < unseen * unseen; i++) causal[i] = i % unseen <= i / unseen ? 0.0f : -__builtin_inff();
    return causal;
}

// Draft a whole tree, one pass per level; return 1 on success, 0 if out of memory, -1 if logits are not finite, -2 for
// an id or a position out of range.
//
// All threads go through the levels together: one thread prepares a pass while the others wait at the end of its block;
// all threads run it, and after a barrier the logits are complete; the rows are distributed among threads, and after
// the last row a single thread writes the children, which are the next level's tokens. `failed` collects bits: 1 if out
// of memory, 2 if logits are not finite.
int sequoia_draft(Cache *cache, const Draft *draft) {
    const int size = cache->model->shape.vocab, unseen = draft->unseen, threads = draft->threads;
    const int64_t vocab = draft->vocab;
    int most = unseen, draws = 0, failed = 0;
    for (int i = 0; i < draft->levels; i++) {
        const Level *level = draft->level + i;
        if (level->forwarded > most) most = level->forwarded;
        if (level->forwarded * level->most_children > draws) draws = level->forwarded * level->most_children;
    }
    int64_t *given = malloc(((size_t)2 * most + draws) * sizeof(int64_t));
    int64_t *positions = given + most, *drawn = positions + most;
    const float *causal = room_to_draft(cache, most, unseen, threads);
    if (!causal || !given) {
        free(given);
        return 0;
    }
    for (int i = 0; i < unseen; i++) positions[i] = draft->root_position - unseen + 1 + i;
    const Pass first = {.rows = unseen, .ids = draft->ids, .positions = positions};
    if (is_outside(cache, &first) || draft->root_position + draft->levels > cache->model->shape.context) {
        free(given);
        return -2;
    }
    float *logits = cache->logits, *rows = draft->rows, *first_rows = draft->first_rows;
    Pass pass = {.length = draft->length, .rows = unseen, .last = unseen, .ids = given, .positions = positions,
                 .mask = causal};
    const double *uniforms = draft->uniforms;
    double began = 0.0;

#pragma omp parallel num_threads(threads) reduction(| : failed)
    for (int depth = 0; depth < draft->levels; depth++) {
        const Level *level = draft->level + depth;
        const int forwarded = level->forwarded, children = level->most_children;
#pragma omp single
        {
            began = now();
            if (depth) {
                pass.length += pass.rows;
                pass.last = depth == 1 ? 1 + forwarded : pass.last + forwarded;
                pass.rows = forwarded;
                pass.mask = level->mask;
            }
            pass.keep = forwarded;
            for (int i = 0; i < pass.rows; i++) {
                given[i] = depth ? draft->tokens[level->nodes[i]] : draft->ids[i];
                positions[i] = depth ? draft->root_position + depth : draft->root_position - unseen + 1 + i;
            }
            prepare(cache, &pass);
        }
        run(cache, &pass, logits);
#pragma omp barrier
#pragma omp master
        *draft->seconds += now() - began;
#pragma omp for
        for (int row = 0; row < forwarded; row++) {
            const float *from = logits + (size_t)row * size;
            float *to = rows + row * vocab, *first = first_rows ? first_rows + row * vocab : NULL;
            int64_t *found = drawn + row * children;
            for (int i = 0; i < children; i++) found[i] = 0;
            if (!rows_softmax_one(from, vocab, draft->inverse_temperature, to))
                failed |= 2;
            else if (first && rows_cut_one(to, vocab, draft->top_k, draft->top_p, first) < 0)
                failed |= 1;
            else if (uniforms)
                failed |= rows_draw(to, first, 1, vocab, children, draft->with_replacement, uniforms + (size_t)row * children,
                                    found) < 0;
            else
                failed |= rows_largest(to, 1, vocab, children, found) < 0;
        }
#pragma omp single
        {
            for (int row = 0, child = level->first_child; row < forwarded; row++)
                for (int rank = 0; rank < level->counts[row]; rank++, child++) {
                    draft->tokens[child] = drawn[row * children + rank];
                    draft->probabilities[child] = rows[row * vocab + draft->tokens[child]];
                }
            rows += forwarded * vocab;
            if (first_rows) first_rows += forwarded * vocab;
            if (uniforms) uniforms += (size_t)forwarded * children;
        }
    }
    free(given);
    return failed & 2 ? -1 : !failed;
}

typedef struct {
    int32_t threads, length, unseen, max_frontiers;
    const int64_t *ids;      // [unseen]: the last committed tokens, the root last
    TreeBuilder *builder;        // contains only the root
    const double *uniforms;  // enough for all draws; read only if the builder draws tokens
    int64_t *widths;         // [max_frontiers]: receives the number of nodes read in each pass
    int64_t frontiers, draws;    // receive the number of passes and the number of uniforms used
    double *seconds;         // incremented by the duration of the passes
} Growth;

// Draft a dynamically grown tree, one pass per frontier; return 1 on success, 0 if out of memory, -1 if logits are not
// finite, -2 for an id or a position out of range.
// Threads go through the frontiers together, as in `sequoia_draft`; between two barriers, `failed` and `ranks` are
// written at most once.
int sequoia_grow(Cache *cache, Growth *growth) {
    TreeBuilder *builder = growth->builder;
    const int size = cache->model->shape.vocab, unseen = growth->unseen, threads = growth->threads;
    const int most = unseen > builder->beam ? unseen : (int)builder->beam;
    int64_t *positions = malloc(unseen * sizeof(int64_t));
    const float *causal = room_to_draft(cache, most, unseen, threads);
    growth->frontiers = growth->draws = 0;
    if (!causal || !positions) {
        free(positions);
        return 0;
    }
    for (int i = 0; i < unseen; i++) positions[i] = builder->root_position - unseen + 1 + i;
    float *logits = cache->logits;
    int64_t ranks = 0;
    int failed = 0, outside = 0;  // bits: 1 logits not finite, 2 out of memory, 4 looked-up token outside the vocabulary
    double began = 0.0;
    Pass pass = {.length = growth->length, .rows = 0};

#pragma omp parallel num_threads(threads)
    for (int frontier = 0; frontier < growth->max_frontiers && !failed; frontier++) {
#pragma omp single
        {
            began = now();
            pass.length += pass.rows;
            pass.keep = (int)tree_frontier(builder);
            if (frontier == 0) {
                pass.rows = pass.last = unseen, pass.ids = growth->ids, pass.positions = positions, pass.mask = causal;
            } else {
                pass.rows = pass.keep, pass.last = (int)builder->read + pass.keep;
                pass.ids = builder->ids, pass.positions = builder->pass_positions, pass.mask = builder->pass_mask;
            }
            if (is_outside(cache, &pass)) pass.keep = 0, outside = 1;
            if (pass.keep) {
                growth->widths[growth->frontiers++] = pass.keep;
                prepare(cache, &pass);
            }
        }
        if (!pass.keep) break;
        run(cache, &pass, logits);
#pragma omp barrier
#pragma omp master
        *growth->seconds += now() - began;
#pragma omp for
        for (int row = 0; row < pass.keep; row++) {
            const int found = tree_row(builder, row, logits + (size_t)row * size);
#pragma omp atomic
            failed |= found;
        }
#pragma omp single
        ranks = failed ? 0 : tree_taken(builder);
        if (ranks) {
#pragma omp for
            for (int row = 0; row < pass.keep; row++) {
                const int found = tree_draw_row(builder, row, growth->uniforms + growth->draws, ranks) < 0 ? 2 : 0;
#pragma omp atomic
                failed |= found;
            }
#pragma omp single
            {
                if (!failed) tree_drawn(builder, ranks);
                if (builder->draws) growth->draws += pass.keep * ranks;
            }
        }
    }
    free(positions);
    return outside || failed & 4 ? -2 : failed & 1 ? -1 : !failed;
}

// Move slot start + slots[i] to start + i; `slots` is ascending.
void sequoia_keep(Cache *cache, int start, const int64_t *slots, int count) {
    const LlamaShape *shape = &cache->model->shape;
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
                const bf16 *here = values + value_pair(from, j, size) + from % 2;
                bf16 *there = values + value_pair(to, j, size) + to % 2;
                for (int lane = 0; lane < LANES; lane++) there[2 * lane] = here[2 * lane];
            }
        }
    }
}
