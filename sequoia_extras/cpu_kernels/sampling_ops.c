// Operations on vocabulary rows: softmax, top-k, draws without replacement, residuals. Plain C with 16-lane vectors,
// which compilers map to those of the processor. Built by compile_c.py; sampling_ops.py documents most functions.
//

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// A cell consists of 16 entries of a row, 16 apart: entry i is in cell i / 256 * 16 + i % 16. The sum or the maximum of
// each cell is stored; vector instructions reduce 256 entries to 16 cells. Fewer rows than MANY are processed by one
// thread.
enum { LANES = 16, BLOCK = 64, STRIPE = 256, MANY = 4 };

typedef float floats __attribute__((vector_size(64), aligned(4)));
typedef int32_t ints __attribute__((vector_size(64), aligned(4)));
typedef double doubles __attribute__((vector_size(64), aligned(8)));

static inline floats pick(ints mask, floats yes, floats no) { return (floats)((mask & (ints)yes) | (~mask & (ints)no)); }

static inline floats exponential(floats x) {  // for x <= 0: relative error below 2e-7, 0 from -87 down; NaN for NaN
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
    floats top = (floats){0} - INFINITY, other = top;
    int64_t i = 0;
    for (; i + 2 * LANES <= size; i += 2 * LANES) {
        const floats v = *(const floats *)(x + i), w = *(const floats *)(x + i + LANES);
        top = pick(v > top, v, top);
        other = pick(w > other, w, other);
    }
    top = pick(other > top, other, top);
    for (; i + LANES <= size; i += LANES) {
        const floats v = *(const floats *)(x + i);
        top = pick(v > top, v, top);
    }
    float best = -INFINITY;
    for (int lane = 0; lane < LANES; lane++) best = top[lane] > best ? top[lane] : best;
    for (; i < size; i++) best = x[i] > best ? x[i] : best;
    return best;
}

// probs [size] = exp((logits - largest) * inverse), not stored if NULL; return their sum, which is not finite if the
// row is not. `inverse` is 1 / temperature throughout this file.
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

// probs [size] = softmax(logits * inverse); return whether the row was finite.
int rows_softmax_one(const float *logits, int64_t size, float inverse, float *probs) {
    float top;
    const float sum = exponentials(logits, size, inverse, probs, &top), factor = 1.0f / sum;
    for (int64_t i = 0; i < size; i++) probs[i] *= factor;
    return isfinite(sum) != 0;
}

// The same for probs [rows, size]; return whether all rows were finite.
int rows_softmax(const float *logits, int64_t stride, int64_t rows, int64_t size, float inverse, float *probs, int threads) {
    int fine = 1;
#pragma omp parallel for num_threads(threads) if (rows >= MANY) reduction(& : fine)
    for (int64_t row = 0; row < rows; row++)
        fine &= rows_softmax_one(logits + row * stride, size, inverse, probs + row * size);
    return fine;
}

// Return whether an index is outside [0, size); functions then return `OUT_OF_RANGE`.
enum { OUT_OF_RANGE = -2 };

static int any_outside(const int64_t *indices, int64_t count, int64_t size) {
    int outside = 0;
    for (int64_t i = 0; i < count; i++) outside |= (uint64_t)indices[i] >= (uint64_t)size;
    return outside;
}

// probabilities [count] = softmax(logits * inverse) of selected tokens; those of row which[i] are at starts[i] to
// starts[i + 1] - 1. logits [lines, size], which [rows]. Return whether all these rows were finite.
int rows_probabilities(const float *logits, int64_t stride, int64_t lines, const int64_t *which, const int64_t *starts,
                       int64_t rows, int64_t size, float inverse, const int64_t *tokens, int64_t count, float *probabilities,
                       int threads) {
    int fine = 1;
    if (any_outside(which, rows, lines) || any_outside(starts, rows + 1, count + 1) || any_outside(tokens, count, size))
        return OUT_OF_RANGE;
#pragma omp parallel for num_threads(threads) if (rows >= MANY) reduction(& : fine)
    for (int64_t row = 0; row < rows; row++) {
        float top;
        const float *line = logits + which[row] * stride, sum = exponentials(line, size, inverse, NULL, &top);
        for (int64_t i = starts[row]; i < starts[row + 1]; i++)
            probabilities[i] = expf((line[tokens[i]] - top) * inverse) / sum;
        fine &= isfinite(sum) != 0;
    }
    return fine;
}

// Return the index of the (first) largest entry of a row, or -1 if the row contains NaN or has no finite maximum.
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

static inline int64_t cell_of(int64_t i) { return i / STRIPE * LANES + i % LANES; }

static inline int64_t first_of(int64_t cell) { return cell / LANES * STRIPE + cell % LANES; }  // the other entries follow, 16 apart

static float cell_highest(const float *x, int64_t cell, int64_t size) {
    float top = -INFINITY;
    for (int64_t i = first_of(cell), n = 0; n < STRIPE / LANES && i < size; n++, i += LANES) top = x[i] > top ? x[i] : top;
    return top;
}

// indices [rows, k] = each row's k largest entries in descending order, ties by index; return 0, or -1 if out of
// memory.
int rows_largest(const float *x, int64_t rows, int64_t size, int64_t k, int64_t *indices) {
    const int64_t count = (size + STRIPE - 1) / STRIPE, cells = count * LANES;
    float *line = malloc((size + cells + count) * sizeof(float)), *tops = line + size, *stripes = tops + cells;
    if (!line) return -1;
    for (int64_t row = 0; row < rows; row++, x += size, indices += k) {
        memcpy(line, x, size * sizeof(float));
        for (int64_t stripe = 0; stripe < count; stripe++) {
            const int64_t from = stripe * STRIPE;
            float *to = tops + stripe * LANES;
            if (from + STRIPE > size) {
                for (int lane = 0; lane < LANES; lane++) to[lane] = cell_highest(line, stripe * LANES + lane, size);
            } else {
                floats top = *(const floats *)(line + from);
                for (int i = LANES; i < STRIPE; i += LANES) {
                    const floats v = *(const floats *)(line + from + i);
                    top = pick(v > top, v, top);
                }
                *(floats *)to = top;
            }
            stripes[stripe] = highest(to, LANES);
        }
        for (int64_t j = 0; j < k; j++) {
            const float top = highest(stripes, count);
            int64_t stripe = 0, place = size;
            while (stripe < count - 1 && stripes[stripe] != top) stripe++;
            for (int64_t cell = stripe * LANES; cell < (stripe + 1) * LANES; cell++) {
                if (tops[cell] != top) continue;
                int64_t i = first_of(cell);
                while (i < size && line[i] != top) i += LANES;
                place = i < place ? i : place;
            }
            if (place >= size) place = 0;  // happens only if a row contains NaN
            const int64_t cell = cell_of(place);
            indices[j] = place;
            line[place] = -INFINITY;
            tops[cell] = cell_highest(line, cell, size);
            stripes[cell / LANES] = highest(tops + cell / LANES * LANES, LANES);
        }
    }
    free(line);
    return 0;
}

// The same as `rows_largest`, with rows distributed among threads.
int rows_largest_shared(const float *x, int64_t rows, int64_t size, int64_t k, int64_t *indices, int threads) {
    const int64_t part = rows < MANY ? rows : (rows + threads - 1) / threads;
    int failed = 0;
#pragma omp parallel for num_threads(threads) if (rows >= MANY) reduction(| : failed)
    for (int64_t row = 0; row < rows; row += part)
        failed |= rows_largest(x + row * size, part < rows - row ? part : rows - row, size, k, indices + row * k);
    return failed;
}

typedef struct {
    float prob;
    int32_t place;
} Entry;

static int likelier(const void *left, const void *right) {
    const Entry *a = left, *b = right;
    return a->prob == b->prob ? a->place - b->place : a->prob < b->prob ? 1 : -1;
}

// kept [size] = probs, filtered by top-k (0 disables it; ties with the last entry stay), then by top-p, and normalized;
// a row that is not finite is copied. Return 0, or -1 if out of memory.
int rows_cut_one(const float *probs, int64_t size, int64_t top_k, double top_p, float *kept) {
    static const float floors[] = {1e-3f, 1e-5f, 0.0f};  // sorting a whole row takes far longer than sorting only the entries with most of its mass
    const int64_t most = top_k > 0 && top_k < size ? top_k : size;
    Entry *entries = malloc(size * sizeof(Entry));
    double mass = 1.0, ahead = 0.0;
    int64_t count = 0, end = 0;
    if (!entries) return -1;
    for (int floor = 0; floor < 3; floor++) {
        double sum = 0.0;
        count = 0;
        for (int64_t from = 0; from < size; from += STRIPE) {
            const int64_t to = from + STRIPE < size ? from + STRIPE : size;
            int any = 0;
            for (int64_t i = from; i < to; i++) any |= probs[i] >= floors[floor];
            for (int64_t i = from; any && i < to; i++)
                if (probs[i] >= floors[floor]) entries[count++] = (Entry){probs[i], (int32_t)i}, sum += probs[i];
        }
        if (most < size ? count >= most : sum > top_p + 1e-6) break;
    }
    if (count) {
        qsort(entries, count, sizeof(Entry), likelier);
        if (most < size) {
            while (count > most && entries[count - 1].prob < entries[most - 1].prob) count--;
            mass = 0.0;
            for (int64_t i = 0; i < count; i++) mass += entries[i].prob;
        }
        for (; end < count && (top_p >= 1.0 || ahead < top_p * mass); end++) ahead += entries[end].prob;
        memset(kept, 0, size * sizeof(float));
        for (int64_t i = 0; i < end; i++) kept[entries[i].place] = (float)(entries[i].prob / ahead);
    } else {
        memcpy(kept, probs, size * sizeof(float));
    }
    free(entries);
    return 0;
}

// The same for kept [rows, size].
int rows_cut(const float *probs, int64_t rows, int64_t size, int64_t top_k, double top_p, float *kept, int threads) {
    int failed = 0;
#pragma omp parallel for num_threads(threads) if (rows >= MANY) reduction(| : failed)
    for (int64_t row = 0; row < rows; row++)
        failed |= rows_cut_one(probs + row * size, size, top_k, top_p, kept + row * size);
    return failed;
}

static double cell_sum(const float *x, int64_t cell, int64_t size) {
    double sum = 0.0;
    for (int64_t i = first_of(cell), n = 0; n < STRIPE / LANES && i < size; n++, i += LANES) sum += x[i];
    return sum;
}

typedef float eight __attribute__((vector_size(32), aligned(4)));

static double added(const double *cells) {  // returns the sum of 16 cells
    const doubles sums = *(const doubles *)cells + *(const doubles *)(cells + 8);
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Draw one entry of a row in proportion to its mass, by skipping `left` of the total mass stripe by stripe, cell by
// cell and entry by entry. Rounding never selects an entry without mass.
static int64_t drawn_place(const float *line, const double *stripes, const double *sums, int64_t count, int64_t size,
                           double left) {
    int64_t stripe = 0, cell = -1, place = -1, last = 0;
    for (; stripe < count; stripe++) {
        if (stripes[stripe] > 0.0) last = stripe;
        if (left < stripes[stripe]) break;
        left -= stripes[stripe];
    }
    if (stripe == count) stripe = last;
    for (int64_t i = stripe * LANES; i < (stripe + 1) * LANES; i++) {
        if (sums[i] <= 0.0) continue;
        cell = i;
        if (left < sums[i]) break;
        left -= sums[i];
    }
    if (cell < 0) return -1;
    for (int64_t i = first_of(cell), n = 0; n < STRIPE / LANES && i < size; n++, i += LANES) {
        if (line[i] <= 0.0f) continue;
        place = i;
        if (left < line[i]) break;
        left -= line[i];
    }
    return place;
}

// Copy a row to line [size] and compute the sums of its cells and stripes; return whether it has mass.
static int lay_out(const float *row, int64_t size, float *line, double *sums, double *stripes, int64_t count) {
    int mass = 0;
    memcpy(line, row, size * sizeof(float));
    for (int64_t stripe = 0; stripe < count; stripe++) {
        const int64_t from = stripe * STRIPE;
        double *to = sums + stripe * LANES;
        if (from + STRIPE > size) {
            for (int lane = 0; lane < LANES; lane++) to[lane] = cell_sum(line, stripe * LANES + lane, size);
        } else {
            doubles low = {0}, high = {0};
            for (int i = 0; i < STRIPE; i += LANES) {
                low += __builtin_convertvector(*(const eight *)(line + from + i), doubles);
                high += __builtin_convertvector(*(const eight *)(line + from + i + 8), doubles);
            }
            *(doubles *)to = low;
            *(doubles *)(to + 8) = high;
        }
        stripes[stripe] = added(to);
        mass |= stripes[stripe] > 0.0;
    }
    return mass;
}

static void take_out(int64_t place, int64_t size, float *line, double *sums, double *stripes) {
    const int64_t cell = cell_of(place);
    line[place] = 0.0f;
    sums[cell] = cell_sum(line, cell, size);
    stripes[cell / LANES] = added(sums + cell / LANES * LANES);
}

// indices [rows, k]: k draws per row, one by one, by inverting the remaining distribution; the first draw is from the
// same row of first [rows, size], unless `first` is NULL or this row has no mass. Without replacement, a drawn entry
// loses its mass; once a row has no mass left, draws are uniform over the entries not drawn. uniforms [rows, k] in [0,
// 1). Return 0, or -1 if out of memory.
int rows_draw(const float *probs, const float *first, int64_t rows, int64_t size, int64_t k, int replace,
              const double *uniforms, int64_t *indices) {
    const int64_t count = (size + STRIPE - 1) / STRIPE, cells = count * LANES;
    double *sums = malloc((cells + count) * sizeof(double) + size * sizeof(float)), *stripes = sums + cells;
    float *line = (float *)(stripes + count);
    if (!sums) return -1;
    for (int64_t row = 0; row < rows; row++, probs += size, indices += k, uniforms += k) {
        const int apart = first && lay_out(first + row * size, size, line, sums, stripes, count);
        if (!apart) lay_out(probs, size, line, sums, stripes, count);
        for (int64_t j = 0; j < k; j++) {
            if (apart && j == 1) {
                lay_out(probs, size, line, sums, stripes, count);
                if (!replace) take_out(indices[0], size, line, sums, stripes);
            }
            double mass = 0.0;
            for (int64_t stripe = 0; stripe < count; stripe++) mass += stripes[stripe];
            int64_t found = mass > 0.0 ? drawn_place(line, stripes, sums, count, size, uniforms[j] * mass) : -1;
            if (found >= 0 && !replace) {
                take_out(found, size, line, sums, stripes);
            } else if (found < 0) {
                int64_t place = (int64_t)(uniforms[j] * (double)(size - j));
                for (int64_t i = 0; i < size && found < 0; i++) {
                    int taken = 0;
                    for (int64_t before = 0; before < j; before++) taken |= indices[before] == i;
                    if (!taken && place-- == 0) found = i;
                }
            }
            indices[j] = found;
        }
    }
    free(sums);
    return 0;
}

// `rows_draw` with rows distributed among threads.
int rows_draw_shared(const float *probs, const float *first, int64_t rows, int64_t size, int64_t k, int replace,
                     const double *uniforms, int64_t *indices, int threads) {
    const int64_t part = rows < MANY ? rows : (rows + threads - 1) / threads;
    int failed = 0;
#pragma omp parallel for num_threads(threads) if (rows >= MANY) reduction(| : failed)
    for (int64_t row = 0; row < rows; row += part)
        failed |= rows_draw(probs + row * size, first ? first + row * size : NULL, part < rows - row ? part : rows - row,
                            size, k, replace, uniforms + row * k, indices + row * k);
    return failed;
}

static double total(const double *x, int64_t size) {
    doubles sums = {0};
    int64_t i = 0;
    for (; i + 8 <= size; i += 8) sums += *(const doubles *)(x + i);
    double sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    for (; i < size; i++) sum += x[i];
    return sum;
}

// wide [size] = row in double precision, normalized.
void rows_to_float64(const float *row, int64_t size, double *wide) {
    for (int64_t i = 0; i < size; i++) wide[i] = row[i];
    const double factor = 1.0 / total(wide, size);
    for (int64_t i = 0; i < size; i++) wide[i] *= factor;
}

// wide [size] = softmax(logits * inverse) in double precision; scratch [size]. Return whether the row was finite.
int rows_distribution(const float *logits, int64_t size, float inverse, float *scratch, double *wide) {
    float top;
    const float sum = exponentials(logits, size, inverse, scratch, &top);
    rows_to_float64(scratch, size, wide);
    return isfinite(sum) != 0;
}

// Set one entry of probs [size] to 0 and normalize the others; return their previous sum. If it is 0, they are all set
// to 0.
double rows_remove(double *probs, int64_t size, int64_t place) {
    probs[place] = 0.0;
    const double sum = total(probs, size), factor = sum > 0.0 ? 1.0 / sum : 0.0;
    for (int64_t i = 0; i < size; i++) probs[i] *= factor;
    return sum;
}

// sums [rows] of max(target - scale * draft - offset, 0); 0 for an infinite offset. Scales and offsets never decrease
// between calls. So once most entries are below 0, the others are moved to kept [2, rows, size] (target and draft), and
// from then on only these counts[row] entries (initially `size`) are read.
void rows_surplus(const float *target, const float *draft, int64_t rows, int64_t size, const double *scales,
                  const double *offsets, float *kept, int64_t *counts, double *sums, int threads) {
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (rows >= MANY)
    for (int64_t row = 0; row < rows; row++) {
        float *left = kept + row * size, *given = left + rows * size;
        const int whole = counts[row] == size;
        const float *p = whole ? target + row * size : left, *q = whole ? draft + row * size : given;
        const double scale = scales[row], offset = offsets[row];
        const int64_t count = isfinite(offset) ? counts[row] : 0;
        double sum = 0.0;
        int64_t above = 0, to = 0;
#pragma omp simd reduction(+ : sum, above)
        for (int64_t i = 0; i < count; i++) {
            const double over = p[i] - scale * q[i] - offset;
            sum += over > 0.0 ? over : 0.0;
            above += over > 0.0;
        }
        sums[row] = sum;
        if (2 * above > count) continue;
        for (int64_t i = 0; i < count; i++) {
            const float wanted = p[i], offered = q[i];
            left[to] = wanted, given[to] = offered;
            to += wanted - scale * offered - offset > 0.0;
        }
        counts[row] = to;
    }
}

// The remainder of a row P after rejections, see `residuals.Residuals`; rest [size]. The first `count` entries of kept
// [2, size] (target and draft) may still be positive and have draft mass (`size`: not moved yet); `bare` is the mass of
// P where Q has none.
struct Residual {
    const float *p, *q;
    int64_t size, count;
    double scale, offset, left, bare;
    float *rest, *kept;
};

static double surplus(struct Residual *of, double scale, double offset) {  // returns the mass that would remain
    float *left = of->kept, *given = left + of->size;
    const int whole = of->count == of->size || offset > 0.0;
    const float *p = whole ? of->p : left, *q = whole ? of->q : given;
    const int64_t count = whole ? of->size : of->count;
    double sum = 0.0;
    int64_t above = 0, to = 0;
#pragma omp simd reduction(+ : sum, above)
    for (int64_t i = 0; i < count; i++) {
        const double over = p[i] - scale * q[i] - offset;
        sum += over > 0.0 ? over : 0.0;
        above += over > 0.0 && q[i] > 0.0f;
    }
    if (!whole) sum += of->bare;
    if (offset > 0.0 || 2 * above > count) return sum;
    if (whole) {
        double bare = 0.0;
#pragma omp simd reduction(+ : bare)
        for (int64_t i = 0; i < count; i++) bare += q[i] > 0.0f ? 0.0 : p[i];
        of->bare = bare;
    }
    for (int64_t i = 0; i < count; i++) {
        const float wanted = p[i], offered = q[i];
        left[to] = wanted, given[to] = offered;
        to += offered > 0.0f && wanted - scale * offered > 0.0;
    }
    of->count = to;
    return sum;
}

// Reject one more draw. It is from `first`, or if that is NULL, from Q, which has mass `mass` left after `drawn`
// tokens.
static void reject(struct Residual *of, const float *first, double mass, int64_t drawn) {
    double sum = 0.0, scale = of->scale, offset = of->offset;
    if (first) {
        for (int64_t i = 0; i < of->size; i++) {
            const float over = of->p[i] - first[i];
            sum += of->kept[i] = over > 0.0f ? over : 0.0f;
        }
        if (sum > 0.0) of->left = sum, of->p = memcpy(of->rest, of->kept, of->size * sizeof(float));
        return;
    }
    if (mass > 0.0) scale += of->left / mass;
    else offset += of->left / (double)(of->size - drawn > 1 ? of->size - drawn : 1);
    sum = surplus(of, scale, offset);
    if (sum > 0.0) of->left = sum, of->scale = scale, of->offset = offset;
    else of->count = of->size;
}

// Return the residual's mass of a token, and store the draft's mass of it in `offered`.
static double wanted(const struct Residual *of, const float *law, int64_t token, double mass, int64_t drawn, double *offered) {
    const double over = of->p[token] - of->scale * law[token] - of->offset;
    *offered = mass > 0.0 ? law[token] / mass : 1.0 / (double)(of->size - drawn > 1 ? of->size - drawn : 1);
    return over > 0.0 ? over / of->left : 0.0;
}

// Draw a token in proportion to the excess over the residual of a distribution with mass `mass` left; an entry of -1
// marks an impossible token. sums [blocks]: scratch memory.
static int64_t draw_rejected(const struct Residual *of, const float *law, double mass, int64_t drawn, double uniform,
                             double *sums) {
    const float share = mass > 0.0 ? (float)(1.0 / mass) : 1.0f, even = mass > 0.0 ? 0.0f : 1.0f / (float)(of->size - drawn);
    const float scale = (float)of->scale, offset = (float)of->offset, inverse = (float)(1.0 / of->left), *p = of->p, *q = of->q;
    double left = 0.0;
    int64_t block = 0, found = of->size - 1;
    for (int64_t from = 0; from < of->size; from += BLOCK, block++) {
        const int64_t stop = from + BLOCK < of->size ? from + BLOCK : of->size;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = from; i < stop; i++) {
            const float over = p[i] - scale * q[i] - offset, excess = law[i] * share + even - (over > 0.0f ? over * inverse : 0.0f);
            sum += excess > 0.0f ? excess : 0.0f;
        }
        left += sums[block] = sum;
    }
    left *= uniform;
    for (block = 0; block * BLOCK < of->size && left >= sums[block]; block++) left -= sums[block];
    while (block && (block * BLOCK >= of->size || sums[block] <= 0.0)) block--;  // rounding may lead past the end
    for (int64_t i = block * BLOCK; i < of->size && i < (block + 1) * BLOCK; i++) {
        const float over = p[i] - scale * q[i] - offset, excess = law[i] * share + even - (over > 0.0f ? over * inverse : 0.0f);
        if (excess <= 0.0f) continue;
        found = i;
        if ((left -= excess) < 0.0) break;
    }
    return found;
}

static void sum_block(const float *row, int64_t size, int64_t block, double *sums) {  // sums the nonnegative entries
    const int64_t stop = (block + 1) * BLOCK < size ? (block + 1) * BLOCK : size;
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = block * BLOCK; i < stop; i++) sum += row[i] > 0.0f ? (double)row[i] : 0.0;
    sums[block] = sum;
}

// Compute `rank_acceptance` for rows [rows, size]; first: the rows of first children, NULL if these are the rows of
// `draft`. Given children [rows, width], compute accepts [rows, width], the probability that each child is accepted;
// otherwise, given the committed tokens [rows], draw ranks [rows] with uniforms [rows, width, 2]. Return 0, or -1 if
// out of memory.
int rows_accepted(const float *target, const float *draft, const float *first, int64_t rows, int64_t size, int64_t width,
                  const int64_t *children, double *accepts, const int64_t *tokens, int replace, const double *uniforms,
                  int64_t *ranks, int threads) {
    int failed = 0;
    if (children ? any_outside(children, rows * width, size) : any_outside(tokens, rows, size)) return OUT_OF_RANGE;
#pragma omp parallel num_threads(threads) if (rows >= MANY) reduction(| : failed)
    {
        const int64_t blocks = (size + BLOCK - 1) / BLOCK;
        double *sums = malloc(2 * blocks * sizeof(double) + 4 * size * sizeof(float)), *masses = sums + blocks;
        float *rest = (float *)(masses + blocks), *undrawn = rest + 3 * size;
        failed |= !sums;
#pragma omp for schedule(dynamic)
        for (int64_t row = 0; row < rows; row++) {
            if (!sums) continue;
            const float *q = draft + row * size, *law = first ? first + row * size : q;
            struct Residual of = {target + row * size, q, size, size, 0.0, 0.0, 1.0, 0.0, rest, rest + size};
            double mass = 1.0, reached = 1.0, offered;
            memcpy(undrawn, q, size * sizeof(float));
            if (children)
                for (int64_t k = 0; k < width; k++) undrawn[children[row * width + k]] = -1.0f;
            else
                ranks[row] = 0;
            for (int64_t block = 0; block < blocks; block++) sum_block(undrawn, size, block, masses);
            const double others = children ? total(masses, blocks) : 0.0;
            for (int64_t k = 0; k < width; k++, law = q) {
                if (children) {
                    const int64_t *drawn = children + row * width;
                    double left = 0.0;
                    for (int64_t after = width - 1; after >= k; after--) left += q[drawn[after]];
                    mass = k ? left + others : 1.0;
                    const double wants = wanted(&of, law, drawn[k], mass, k, &offered);
                    double accept = offered > 0.0 ? wants / (offered > 1e-300 ? offered : 1e-300) : wants > 0.0;
                    accept = accept < 1.0 ? accept : 1.0;
                    accepts[row * width + k] = reached * accept;
                    reached *= 1.0 - accept;
                    if (reached > 0.0) reject(&of, law == q ? NULL : law, mass, k);
                    continue;
                }
                const double *uniform = uniforms + (row * width + k) * 2, wants = wanted(&of, law, tokens[row], mass, k, &offered);
                if (uniform[0] < (wants > 0.0 ? offered / wants : 1.0)) {
                    ranks[row] = k + 1;
                    break;
                }
                if (k + 1 == width) break;
                const float *given = law == q ? undrawn : law;
                const int64_t drawn = replace ? 0 : draw_rejected(&of, given, mass, k, uniform[1], sums);
                reject(&of, law == q ? NULL : law, mass, k);
                if (replace) continue;
                undrawn[drawn] = -1.0f;
                sum_block(undrawn, size, drawn / BLOCK, masses);
                mass = total(masses, blocks);
            }
        }
        free(sums);
    }
    return -failed;
}

// rest [size] = max(target - draft, 0), normalized; target itself if nothing remains.
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

// Return the entry at which the running sum of probs [size] exceeds uniform * total; never one without mass.
int64_t rows_invert(const double *probs, int64_t size, double uniform) {
    double left = uniform * total(probs, size);
    int64_t last = 0;
    for (int64_t from = 0; from < size; from += BLOCK) {
        const int64_t count = size - from < BLOCK ? size - from : BLOCK;
        const double sum = total(probs + from, count);
        if (sum <= left && from + count < size) {
            left -= sum;
            if (sum > 0.0) last = from + count;  // skipped; if rounding leads past the end, its last entry with mass is used
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

// Remove a rejected child's token from the draft's row; an exhausted row is uniform over the tokens not yet rejected.
static void give_up(double *mass, int64_t size, const int64_t *tokens, int64_t first, int64_t child) {
    if (rows_remove(mass, size, tokens[child]) > 0.0) return;
    for (int64_t i = 0; i < size; i++) mass[i] = 1.0;
    for (int64_t i = first; i <= child; i++) mass[tokens[i]] = 0.0;
    const double sum = total(mass, size);
    for (int64_t i = 0; i < size; i++) mass[i] /= sum > 1.0 ? sum : 1.0;
}

// The rules of `verifiers`, operation by operation; each is exact for one draft sampling.
enum Rule { SEQUOIA, SPECINFER, TOPK };

// Return whether n nodes are numbered breadth-first and their tokens are in the vocabulary.
static int is_tree(int64_t n, const int64_t *firsts, const int64_t *counts, const int64_t *tokens, int64_t size) {
    int64_t next = 1;
    for (int64_t node = 0; node < n && node < next; node++) {
        if (counts[node] < 0 || counts[node] > n - next || (counts[node] && firsts[node] != next)) return 0;
        next += counts[node];
    }
    return next == n && !any_outside(tokens + 1, n - 1, size);
}

// Walk down a drafted tree (`decoding.walk.walk_tree`).
// logits [n, size]; node i has counts[i] children, starting at firsts[i]; draft [drafted, size]: node i's row is at
// cache_positions[i]; tokens [n]; uniforms [n]; looked_up [n]: how many of a node's first children were looked up
// instead of drawn, NULL for none. Fills path [n]; the nodes [n] of the trials and their masses [n, 2] of target and
// draft; ends = {length of the path, number of trials, bonus token}. Return whether the visited rows were finite; -1 if
// out of memory, OUT_OF_RANGE for an invalid tree.
int rows_walk(int rule, int64_t n, const float *logits, int64_t stride, int64_t size, float inverse, const int64_t *firsts,
              const int64_t *counts, const int64_t *cache_positions, const float *draft, int64_t drafted,
              const int64_t *tokens, const double *uniforms, int64_t *path, int64_t *nodes, double *masses, int64_t *ends,
              const int64_t *looked_up) {
    if (!is_tree(n, firsts, counts, tokens, size)) return OUT_OF_RANGE;
    double *memory = malloc(size * (3 * sizeof(double) + sizeof(float)));
    double *left = memory, *mass = left + size, *rest = mass + size;
    float *scratch = (float *)(rest + size);
    int64_t node = 0, length = 1, trials = 0;
    int fine = 1;
    if (!memory) return -1;
    path[0] = 0;
    for (;;) {
        int64_t next = -1;
        fine = rows_distribution(logits + node * stride, size, inverse, scratch, left);
        if (!fine) break;
        const int64_t first_drawn = rule == TOPK ? counts[node] : looked_up ? looked_up[node] : 0;  // index of the first drawn child
        const int draws = first_drawn < counts[node];
        if (draws && any_outside(cache_positions + node, 1, drafted)) {
            fine = OUT_OF_RANGE;
            break;
        }
        if (draws) rows_to_float64(draft + cache_positions[node] * size, size, mass);
        for (int64_t child = firsts[node]; child < firsts[node] + counts[node]; child++) {
            const int64_t token = tokens[child];
            const int certain = child < firsts[node] + first_drawn;
            const double target_mass = left[token], given = certain ? 1.0 : mass[token];
            const double draft_mass = given > 0.0 ? given : 1e-300;
            nodes[trials] = child;
            masses[2 * trials] = target_mass;
            masses[2 * trials + 1] = draft_mass;
            if (uniforms[trials++] * draft_mass < target_mass) {
                next = child;
                break;
            }
            if (certain) {
                memcpy(rest, left, size * sizeof(double));
                if (rows_remove(rest, size, token) <= 0.0) memcpy(rest, left, size * sizeof(double));
            } else {
                rows_residual(left, mass, size, rest);
            }
            double *swap = left;
            left = rest, rest = swap;
            if (rule == SEQUOIA && draws) give_up(mass, size, tokens, firsts[node], child);
        }
        if (next < 0) break;
        path[length++] = node = next;
    }
    ends[0] = length, ends[1] = trials;
    ends[2] = fine > 0 ? rows_invert(left, size, uniforms[trials]) : 0;
    free(memory);
    return fine;
}

// rest [size] = what remains of `left` after a rejection, where `left` sums to `share`; return the sum of `rest`.
static double residual_share(const double *left, double share, const double *draft, int64_t size, double *rest) {
    for (int64_t i = 0; i < size; i++) {
        const double over = left[i] - draft[i];
        rest[i] = over > 0.0 ? over : 0.0;
    }
    const double sum = total(rest, size), refused = share < 1.0 ? 1.0 - share : 0.0;
    if (sum <= 0.0) {  // equal distributions: a rejection is due to rounding alone
        if (refused < 1e-12) memcpy(rest, left, size * sizeof(double));
        return refused < 1e-12 ? share : 0.0;
    }
    const double factor = 1.0 / (sum + refused);
    for (int64_t i = 0; i < size; i++) rest[i] *= factor;
    return sum * factor;
}

// A node on the stack of a traversal: its id, its next child, the probability that it or a descendant is accepted, its
// rows.
struct Visit {
    int64_t node, child;
    double share, *left, *mass;
};

// Return the number of levels of a breadth-first tree, with children as in `rows_walk`.
static int64_t levels_of(const int64_t *firsts, const int64_t *counts) {
    int64_t levels = 1;
    for (int64_t start = 0, end = 1, last = 1;; levels++, start = end, end = last) {
        for (int64_t node = start; node < end; node++)
            if (counts[node]) last = firsts[node] + counts[node];
        if (last == end) return levels;
    }
}

// Walk up from the leaves (`decoding.walk.walk_from_leaves`). Arguments and result as in `rows_walk`; a trial is a node
// at which the walk may end; its masses are its share and 1.
int rows_traverse(int64_t n, const float *logits, int64_t stride, int64_t size, float inverse, const int64_t *firsts,
                  const int64_t *counts, const int64_t *cache_positions, const float *draft, int64_t drafted,
                  const int64_t *tokens, const double *uniforms, int64_t *path, int64_t *nodes, double *masses,
                  int64_t *ends) {
    if (!is_tree(n, firsts, counts, tokens, size)) return OUT_OF_RANGE;
    const int64_t levels = levels_of(firsts, counts), rows = size * (2 * sizeof(double));
    struct Visit *visits = malloc(levels * (sizeof(struct Visit) + rows) + size * (sizeof(double) + sizeof(float)));
    if (!visits) return -1;
    struct Visit *at = visits;
    double *memory = (double *)(visits + levels), *rest = memory + 2 * levels * size;
    float *scratch = (float *)(rest + size);
    for (int64_t i = 0; i < levels; i++) visits[i].left = memory + 2 * i * size, visits[i].mass = visits[i].left + size;
    int64_t trials = 0, tried = 0, kept = 0;  // tried: the child that was just rejected
    int fine = 1;
    at->node = 0, at->child = firsts[0], at->share = 1.0;
    for (int opened = 0;;) {
        const int64_t node = at->node, end = firsts[node] + counts[node];
        if (!opened && counts[node]) {
            if (any_outside(cache_positions + node, 1, drafted)) {
                fine = OUT_OF_RANGE;
                break;
            }
            if (!(fine = rows_distribution(logits + node * stride, size, inverse, scratch, at->left))) break;
            for (int64_t i = 0; at->share < 1.0 && i < size; i++) at->left[i] *= at->share;
            rows_to_float64(draft + cache_positions[node] * size, size, at->mass);
        }
        if (tried) {
            at->share = residual_share(at->left, at->share, at->mass, size, rest);
            double *swap = at->left;
            at->left = rest, rest = swap;
            if (at->child < end) give_up(at->mass, size, tokens, firsts[node], tried);
            tried = 0;
        }
        if (at->child < end) {
            const int64_t child = at->child++;
            const double wanted = at->left[tokens[child]], offered = at->mass[tokens[child]];
            const double ratio = offered > 0.0 ? wanted / offered : 1.0;
            if (wanted > 0.0 && ratio > 0.0) {
                at[1] = (struct Visit){child, firsts[child], ratio < 1.0 ? ratio : 1.0, at[1].left, at[1].mass};
                at++, opened = 0;
                continue;
            }
            nodes[trials] = tried = child, masses[2 * trials] = 0.0, masses[2 * trials + 1] = 1.0;
            trials++, opened = 1;
            continue;
        }
        if (node) {
            nodes[trials] = node, masses[2 * trials] = at->share, masses[2 * trials + 1] = 1.0;
            if (uniforms[trials++] >= at->share) {
                tried = node, opened = 1, at--;
                continue;
            }
        }
        if (!counts[node]) fine = rows_distribution(logits + node * stride, size, inverse, scratch, at->left);
        break;
    }
    for (const struct Visit *visit = visits; visit <= at; visit++) path[kept++] = visit->node;
    ends[0] = kept, ends[1] = trials;
    ends[2] = fine > 0 ? rows_invert(at->left, size, uniforms[trials]) : 0;
    free(visits);
    return fine;
}

// Follow the target's most likely tokens (`decoding.walk.walk_greedily`). Arguments and result as in `rows_walk`; a
// trial is a compared node.
int rows_follow(int64_t n, const float *logits, int64_t stride, int64_t size, const int64_t *firsts, const int64_t *counts,
                const int64_t *tokens, int64_t *path, int64_t *nodes, int64_t *ends) {
    if (!is_tree(n, firsts, counts, tokens, size)) return OUT_OF_RANGE;
    int64_t node = 0, length = 1, trials = 0, wanted;
    path[0] = 0;
    for (;;) {
        int64_t next = -1;
        if ((wanted = best_place(logits + node * stride, size)) < 0) return 0;
        for (int64_t child = firsts[node]; child < firsts[node] + counts[node] && next < 0; child++) {
            nodes[trials++] = child;
            if (tokens[child] == wanted) next = child;
        }
        if (next < 0) break;
        path[length++] = node = next;
    }
    ends[0] = length, ends[1] = trials, ends[2] = wanted;
    return 1;
}
