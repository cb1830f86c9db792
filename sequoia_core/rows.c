// Rows of a vocabulary on CPU: softmax, the largest entries, draws without replacement, residuals. Plain C with vectors of
// 16 lanes that compilers map to what the processor has. Built by native.py; called from rows.py, which says what each does.

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 16, BLOCK = 64, MANY = 4 };  // entries per block of which sums or maxima are kept; rows worth threads

typedef float floats __attribute__((vector_size(64), aligned(4)));
typedef int32_t ints __attribute__((vector_size(64), aligned(4)));
typedef double doubles __attribute__((vector_size(64), aligned(8)));

static inline floats pick(ints mask, floats yes, floats no) { return (floats)((mask & (ints)yes) | (~mask & (ints)no)); }

static inline floats exponential(floats x) {  // of x <= 0; relative error below 2e-7, 0 from -87 down, NaN of NaN
    const ints tiny = x < -87.0f;
    const floats zero = {0}, safe = pick(tiny, zero, x);
    const ints n = __builtin_convertvector(pick(x != x, zero, safe) * 1.44269504f - 0.5f, ints);
    const floats whole = __builtin_convertvector(n, floats), r = safe - whole * 0.693359375f + whole * 2.12194440e-4f;
    floats y = 1.9875691500e-4f * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    y *= (floats)((n + 127) << 23);
    return pick(tiny, zero, y);
}

static float highest(const float *x, int64_t size) {
    floats top = (floats){0} - INFINITY;
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        const floats v = *(const floats *)(x + i);
        top = pick(v > top, v, top);
    }
    float best = -INFINITY;
    for (int lane = 0; lane < LANES; lane++) best = top[lane] > best ? top[lane] : best;
    for (; i < size; i++) best = x[i] > best ? x[i] : best;
    return best;
}

// probs [size] = exp((logits - largest) * inverse), or nothing stored where that is NULL -> their sum; not finite for a row
// that is not.
static float exponentials(const float *logits, int64_t size, float inverse, float *probs, float *largest) {
    const float top = *largest = highest(logits, size);
    if (!isfinite(top)) return NAN;
    floats sums = {0};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        const floats p = exponential((*(const floats *)(logits + i) - top) * inverse);
        if (probs) *(floats *)(probs + i) = p;
        sums += p;
    }
    float sum = 0.0f;
    if (i < size) {
        floats rest = (floats){0} - INFINITY;
        memcpy(&rest, logits + i, (size - i) * sizeof(float));
        rest = exponential((rest - top) * inverse);
        if (probs) memcpy(probs + i, &rest, (size - i) * sizeof(float));
        for (int lane = 0; lane < size - i; lane++) sum += rest[lane];
    }
    for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
    return sum;
}

// probs [rows, size] = softmax(logits * inverse) -> whether all rows were finite.
int rows_soften(const float *logits, int64_t stride, int64_t rows, int64_t size, float inverse, float *probs, int threads) {
    int fine = 1;
#pragma omp parallel for num_threads(threads) if (rows >= MANY) reduction(& : fine)
    for (int64_t row = 0; row < rows; row++) {
        float top, *to = probs + row * size;
        const float sum = exponentials(logits + row * stride, size, inverse, to, &top), factor = 1.0f / sum;
        for (int64_t i = 0; i < size; i++) to[i] *= factor;
        fine &= isfinite(sum) != 0;
    }
    return fine;
}

// chances: what softmax(logits * inverse) gives certain tokens, those of row which[i] at starts[i] to starts[i + 1] - 1
// -> whether all these rows were finite.
int rows_chances(const float *logits, int64_t stride, const int64_t *which, const int64_t *starts, int64_t rows,
                 int64_t size, float inverse, const int64_t *tokens, float *chances, int threads) {
    int fine = 1;
#pragma omp parallel for num_threads(threads) if (rows >= MANY) reduction(& : fine)
    for (int64_t row = 0; row < rows; row++) {
        float top;
        const float *line = logits + which[row] * stride, sum = exponentials(line, size, inverse, NULL, &top);
        for (int64_t i = starts[row]; i < starts[row + 1]; i++) chances[i] = expf((line[tokens[i]] - top) * inverse) / sum;
        fine &= isfinite(sum) != 0;
    }
    return fine;
}

// Return the place of the (first) largest entry of a row, or -1 for one with NaN or no finite largest.
static int64_t best_place(const float *x, int64_t size) {
    const float top = highest(x, size);
    ints odd = {0};
    int64_t i = 0, odds = 0;
    for (; i + LANES <= size; i += LANES) {
        const floats v = *(const floats *)(x + i);
        odd |= v != v;
    }
    for (int lane = 0; lane < LANES; lane++) odds |= odd[lane];
    for (; i < size; i++) odds |= x[i] != x[i];
    if (odds || !isfinite(top)) return -1;
    for (int64_t block = 0;; block += BLOCK) {
        int any = 0;
        const int64_t stop = block + BLOCK < size ? block + BLOCK : size;
        for (i = block; i < stop; i++) any |= x[i] == top;
        if (any)
            for (i = block;; i++)
                if (x[i] == top) return i;
    }
}

// best [rows] = place of each row's (first) largest entry -> whether all rows had one.
int rows_best(const float *x, int64_t stride, int64_t rows, int64_t size, int64_t *best, int threads) {
    int fine = 1;
#pragma omp parallel for num_threads(threads) if (rows >= MANY) reduction(& : fine)
    for (int64_t row = 0; row < rows; row++) {
        best[row] = best_place(x + row * stride, size);
        fine &= best[row] >= 0;
    }
    return fine;
}

static float block_highest(const float *x, int64_t block, int64_t size) {
    const int64_t from = block * BLOCK, left = size - from;
    return highest(x + from, left < BLOCK ? left : BLOCK);
}

// places [rows, k] = the k largest entries of each row, largest first, equal ones in order -> 0, or -1 without memory.
int64_t rows_largest(const float *x, int64_t rows, int64_t size, int64_t k, int64_t *places) {
    const int64_t blocks = (size + BLOCK - 1) / BLOCK;
    float *line = malloc((size + blocks) * sizeof(float)), *tops = line + size;
    if (!line) return -1;
    for (int64_t row = 0; row < rows; row++, x += size, places += k) {
        memcpy(line, x, size * sizeof(float));
        for (int64_t block = 0; block < blocks; block++) tops[block] = block_highest(line, block, size);
        for (int64_t j = 0; j < k; j++) {
            const float top = highest(tops, blocks);
            int64_t block = 0, i;
            while (block < blocks - 1 && tops[block] != top) block++;
            for (i = block * BLOCK; i < size - 1 && line[i] != top; i++) {}
            places[j] = i;
            line[i] = -INFINITY;
            tops[block] = block_highest(line, block, size);
        }
    }
    free(line);
    return 0;
}

static double block_sum(const float *x, int64_t block, int64_t size) {
    const int64_t from = block * BLOCK, left = size - from;
    if (left < BLOCK) {
        double sum = 0.0;
        for (int64_t i = 0; i < left; i++) sum += x[from + i];
        return sum;
    }
    typedef float eight __attribute__((vector_size(32), aligned(4)));
    doubles sums = {0};
    for (int i = 0; i < BLOCK; i += 8) sums += __builtin_convertvector(*(const eight *)(x + from + i), doubles);
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// places [rows, k]: k draws without replacement per row, one by one by inverting what is left of the row; when no mass is
// left, uniformly from the entries not drawn. uniforms [rows, k] in [0, 1) -> 0, or -1 without memory.
int64_t rows_draw(const float *probs, int64_t rows, int64_t size, int64_t k, const double *uniforms, int64_t *places) {
    const int64_t blocks = (size + BLOCK - 1) / BLOCK;
    double *sums = malloc(blocks * sizeof(double) + size * sizeof(float));
    float *line = (float *)(sums + blocks);
    if (!sums) return -1;
    for (int64_t row = 0; row < rows; row++, probs += size, places += k, uniforms += k) {
        memcpy(line, probs, size * sizeof(float));
        for (int64_t block = 0; block < blocks; block++) sums[block] = block_sum(line, block, size);
        for (int64_t j = 0; j < k; j++) {
            double total = 0.0, left;
            for (int64_t block = 0; block < blocks; block++) total += sums[block];
            int64_t found = -1;
            if (total > 0.0) {
                int64_t block = 0, last = -1;
                left = uniforms[j] * total;
                for (; block < blocks; block++) {
                    if (sums[block] > 0.0) last = block;
                    if (left < sums[block]) break;
                    left -= sums[block];
                }
                block = block < blocks ? block : last;  // rounding must not fall past the last entry with mass
                const int64_t stop = (block + 1) * BLOCK < size ? (block + 1) * BLOCK : size;
                for (int64_t i = block * BLOCK; i < stop; i++) {
                    if (line[i] <= 0.0f) continue;
                    found = i;
                    if (left < line[i]) break;
                    left -= line[i];
                }
                if (found < 0) found = block * BLOCK;  // only for a row with NaN
                line[found] = 0.0f;
                sums[block] = block_sum(line, block, size);
            } else {
                int64_t place = (int64_t)(uniforms[j] * (double)(size - j));
                for (int64_t i = 0; i < size && found < 0; i++) {
                    int taken = 0;
                    for (int64_t before = 0; before < j; before++) taken |= places[before] == i;
                    if (!taken && place-- == 0) found = i;
                }
            }
            places[j] = found;
        }
    }
    free(sums);
    return 0;
}

static double total(const double *x, int64_t size) {
    doubles sums = {0};
    int64_t i = 0;
    for (; i + 8 <= size; i += 8) sums += *(const doubles *)(x + i);
    double sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    for (; i < size; i++) sum += x[i];
    return sum;
}

// wide [size] = row in double precision, scaled to sum to 1.
void rows_widen(const float *row, int64_t size, double *wide) {
    for (int64_t i = 0; i < size; i++) wide[i] = row[i];
    const double factor = 1.0 / total(wide, size);
    for (int64_t i = 0; i < size; i++) wide[i] *= factor;
}

// wide [size] = softmax(logits * inverse) of one row in double precision; scratch [size] -> whether the row was finite.
int rows_law(const float *logits, int64_t size, float inverse, float *scratch, double *wide) {
    float top;
    const float sum = exponentials(logits, size, inverse, scratch, &top);
    rows_widen(scratch, size, wide);
    return isfinite(sum) != 0;
}

// rest [size] = max(target - draft, 0), scaled to sum to 1; target itself where nothing is left.
void rows_residual(const double *target, const double *draft, int64_t size, double *rest) {
    for (int64_t i = 0; i < size; i++) {
        const double left = target[i] - draft[i];
        rest[i] = left > 0.0 ? left : 0.0;
    }
    const double sum = total(rest, size);
    if (sum > 0.0) {
        const double factor = 1.0 / sum;
        for (int64_t i = 0; i < size; i++) rest[i] *= factor;
    } else {
        memcpy(rest, target, size * sizeof(double));
    }
}

// The entry at which the running sum of probs [size] passes uniform * its total; never one without mass.
int64_t rows_invert(const double *probs, int64_t size, double uniform) {
    double left = uniform * total(probs, size);
    int64_t last = 0;
    for (int64_t from = 0; from < size; from += BLOCK) {
        const int64_t count = size - from < BLOCK ? size - from : BLOCK;
        const double sum = total(probs + from, count);
        if (sum <= left && from + count < size) {
            left -= sum;
            if (sum > 0.0) last = from + count;  // passed: should rounding end here, its last entry with mass
            continue;
        }
        for (int64_t i = from; i < from + count; i++) {
            if (probs[i] <= 0.0) continue;
            if (left < probs[i]) return i;
            left -= probs[i];
            last = i + 1;
        }
    }
    while (last > 1 && probs[last - 1] <= 0.0) last--;
    return last > 0 ? last - 1 : 0;
}
