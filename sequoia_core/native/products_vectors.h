// What the instruction sets without a matrix unit share. A header defines `activation`, `keep_activation`, BATCH and
// TOGETHER (rows computed in one go) before it includes this, and `few_rows` after. There is no unit to ask for, start or
// stop.

typedef struct {  // rows of activations times 32 columns: two tiles and their successors along K
    float *c;
    size_t c_row;
    const activation *a;  // in tiles
    const bf16 *left, *right;
    size_t w_step;
    int steps;
    const bf16 *ahead;  // what is to be fetched meanwhile: at most 32 cache lines for each step along K
    int lines;
    size_t fetched_with_a_pair;  // entries of `ahead` to fetch with each of the 16 pairs of a step
} Product;

static void few_rows(const Product *product, int rows);  // at most TOGETHER of them

static int granted(void) { return 1; }

static inline void begin_products(void) {}

static inline void end_products(void) {}

// In parts of equal size. What is to be fetched is fetched evenly: each part of the rows fetches its share of it, a little
// with each of the 16 pairs of a step.
static inline void many_rows(Product p, int rows) {
    const int parts = (rows + TOGETHER - 1) / TOGETHER, part = (rows + parts - 1) / parts;
    p.fetched_with_a_pair = p.lines * 2 / parts;
    for (int first = 0; first < rows; first += part) {
        few_rows(&p, rows - first < part ? rows - first : part);
        p.c += part * p.c_row, p.a += part * DEEP;
        p.ahead += (size_t)p.steps * (DEEP / 2) * p.fetched_with_a_pair;
    }
}

// c [up to 16 rows, 32] = a in tiles, times the 32 columns of one group. Meanwhile `lines` cache lines of `ahead` are
// fetched with each step along K.
static void product(float *c, const activation *a, int rows, const bf16 *tiles, int k, const bf16 *ahead, int lines) {
    many_rows((Product){c, WIDE, a, tiles, tiles + TILE, GROUP * TILE, k / DEEP, ahead, lines, 0}, rows);
}

// scores [rows, stride] = queries [up to 16 rows, d] in tiles, times all keys, 32 keys at a time.
static void score(float *scores, int stride, const activation *queries, int rows, const bf16 *keys, int blocks, int size) {
    for (int block = 0; block < blocks; block++, keys += (size_t)2 * ROWS * size)
        many_rows((Product){scores + block * DEEP, stride, queries, keys, keys + ROWS * size, TILE,
                            size / DEEP, keys, 0, 0}, rows);
}

// sums [rows, d] = weights [up to 16 rows, 32 for each block] in tiles, times the values of whole blocks of 32 keys.
static void weigh(float *sums, const activation *weights, int rows, const bf16 *values, int blocks, int size) {
    for (int part = 0; part < size / 16; part += 2)
        many_rows((Product){sums + part * 16, size, weights, values + (size_t)part * TILE,
                            values + (size_t)(part + 1) * TILE, (size_t)size / 16 * TILE, blocks, values, 0, 0}, rows);
}
