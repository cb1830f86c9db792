// Code shared by the instruction sets without a matrix unit. A header defines `activation`, `keep_activation`, BATCH
// and TOGETHER (rows computed at once) before it includes this one, and `few_rows` after it. These instruction sets
// have no unit to request, start or stop.

typedef struct {  // rows of activations times 32 columns: two tiles per step along K
    float *c;
    size_t c_row;
    const activation *a;  // tiled
    const bf16 *left, *right;
    size_t w_step;
    int steps;
    const bf16 *ahead;  // weights to prefetch: at most 32 cache lines per step along K
    int lines;
    size_t fetched_with_a_pair;  // number of entries of `ahead` to prefetch with each of a step's 16 pairs
} Product;

static void few_rows(const Product *product, int rows);  // at most TOGETHER rows

static int granted(void) { return 1; }

static inline void begin_products(void) {}

static inline void end_products(void) {}

// Compute rows in parts of equal size. Prefetching is spread evenly: each part prefetches its share, a little with each
// of a step's 16 pairs.
static inline void many_rows(Product p, int rows) {
    const int parts = (rows + TOGETHER - 1) / TOGETHER, part = (rows + parts - 1) / parts;
    p.fetched_with_a_pair = p.lines * 2 / parts;
    for (int first = 0; first < rows; first += part) {
        few_rows(&p, rows - first < part ? rows - first : part);
        p.c += part * p.c_row, p.a += part * DEEP;
        p.ahead += (size_t)p.steps * (DEEP / 2) * p.fetched_with_a_pair;
    }
}

// c [up to 16 rows, 32] = tiled a times the 32 columns of one group. Each step along K prefetches `lines` cache lines
// of `ahead`.
static void product(float *c, const activation *a, int rows, const bf16 *tiles, int k, const bf16 *ahead, int lines) {
    many_rows((Product){c, WIDE, a, tiles, tiles + TILE, GROUP * TILE, k / DEEP, ahead, lines, 0}, rows);
}

// scores [rows, stride] = tiled queries [up to 16 rows, d] times all keys, 32 keys at a time.
static void score(float *scores, int stride, const activation *queries, int rows, const bf16 *keys, int blocks, int size) {
    for (int block = 0; block < blocks; block++, keys += (size_t)2 * ROWS * size)
        many_rows((Product){scores + block * DEEP, stride, queries, keys, keys + ROWS * size, TILE,
                            size / DEEP, keys, 0, 0}, rows);
}

// sums [rows, d] = tiled weights [up to 16 rows, 32 per block] times the values of whole blocks of 32 keys.
static void weigh(float *sums, const activation *weights, int rows, const bf16 *values, int blocks, int size) {
    for (int part = 0; part < size / 16; part += 2)
        many_rows((Product){sums + part * 16, size, weights, values + (size_t)part * TILE,
                            values + (size_t)(part + 1) * TILE, (size_t)size / 16 * TILE, blocks, values, 0, 0}, rows);
}
