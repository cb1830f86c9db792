// Trees that grow while they are drafted: what decoding/dynamic/expansion.py decides, number for number, so change both. Built
// together with sampling_ops.c; tree_expansion.h says how the functions are called.

#include "tree_expansion.h"

#include <math.h>
#include <string.h>

#ifdef __clang__  // a product and a sum in one rounding would differ from NumPy's
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

int rows_softmax_one(const float *logits, int64_t size, float inverse, float *probs);
int rows_largest(const float *x, int64_t rows, int64_t size, int64_t k, int64_t *found);
int rows_draw(const float *probs, int64_t rows, int64_t size, int64_t k, int replace, const double *uniforms, int64_t *found);

enum { TABLE_MOST_LIKELY = 0, TABLE_AFTER = 3, TABLE_BEFORE = 6, POOLED = 2 };  // as in design/calibration.py
enum { MANY = 4 };  // fewer rows are not shared among threads

// order [count]: sorted by falling keys, equal ones as they stand.
static void sort_falling(const double *keys, int64_t *order, int64_t *other, int64_t count) {
    for (int64_t run = 1; run < count; run *= 2) {
        for (int64_t start = 0; start < count; start += 2 * run) {
            const int64_t middle = start + run < count ? start + run : count;
            const int64_t stop = start + 2 * run < count ? start + 2 * run : count;
            int64_t i = start, j = middle;
            for (int64_t to = start; to < stop; to++)
                other[to] = j >= stop || (i < middle && keys[order[i]] >= keys[order[j]]) ? order[i++] : order[j++];
        }
        memcpy(order, other, count * sizeof(int64_t));
    }
}

// sorted [count]: the values, falling; meant for few of them, or such as fall already.
static void falling(const double *values, double *sorted, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int64_t to = i;
        for (; to && sorted[to - 1] < values[i]; to--) sorted[to] = sorted[to - 1];
        sorted[to] = values[i];
    }
}

static double chance(const Shaping *s, int64_t table, double prob) {
    if (!s->values) return prob;
    const double *x = s->centres, *y = s->values + table * s->bins;
    int64_t j = -1, stop = s->bins;  // x[j] <= prob < x[stop]
    while (stop - j > 1) {
        const int64_t middle = (j + stop) / 2;
        if (x[middle] <= prob)
            j = middle;
        else
            stop = middle;
    }
    double found;
    if (j < 0)
        found = y[0];
    else if (stop == s->bins || x[j] == prob)
        found = y[j];
    else
        found = (y[j + 1] - y[j]) / (x[j + 1] - x[j]) * (prob - x[j]) + y[j];
    found = s->gain * found;
    return found < 1.0 ? found : 1.0;
}

static int64_t pooled(int64_t rank) { return rank < POOLED ? rank : POOLED; }

static double chance_before(const Shaping *s, int64_t rank, double left, double largest) {
    const int64_t mass = (s->mass_edges[0] <= left) + (s->mass_edges[1] <= left);
    return chance(s, rank == 0 ? TABLE_BEFORE : TABLE_BEFORE + 1 + 3 * (pooled(rank) - 1) + mass, largest);
}

// s->order: nodes that the draft may still read, most promising first -> how many, at most a beam.
static int64_t unread(const Shaping *s) {
    int64_t count = 0;
    for (int64_t i = 0; i < s->size; i++)
        if (s->cache_positions[i] < 0 && s->depths[i] < s->max_depth && s->scores[i] > 0.0) s->order[count++] = i;
    sort_falling(s->scores, s->order, s->other, count);
    return count < s->beam ? count : s->beam;
}

// Take into s->merged, which holds `count` falling numbers, the products of a score and `branch` more falling chances
// -> how many it holds then: the largest, at most max_size.
static int64_t merge_gains(const Shaping *s, double score, const double *chances, int64_t count) {
    const int64_t all = count + s->branch, kept = all < s->max_size ? all : s->max_size;
    double *old = s->previous, *merged = s->merged;
    memcpy(old, merged, count * sizeof(double));
    for (int64_t i = 0, k = 0, to = 0; to < kept; to++) {
        const double gain = k < s->branch ? score * chances[k] : -1.0;
        if (i < count && old[i] >= gain)
            merged[to] = old[i++];
        else
            merged[to] = gain, k++;
    }
    return kept;
}

// What the best number of draws gains beyond its cost, of `count` gains in s->merged; *least is the least gain among them,
// infinite for none.
static double best_draws(const Shaping *s, int64_t count, double *least) {
    const double *sorted = s->merged;
    double sum = 0.0, best = 0.0;
    *least = INFINITY;
    for (int64_t i = 0; i < count && i < s->max_size - s->size && sorted[i] > s->threshold; i++) {
        sum = i ? sum + sorted[i] : sorted[i];
        const double value = sum - (s->step ? s->step[s->size + 1 + i] - s->step[s->size] : 0.0);
        if (value > best) best = value, *least = sorted[i];
    }
    return best;
}

// Expected tokens less cost once the first `width` nodes of the frontier are read, with `count` expected gains in s->merged.
// Top-k of the draft; `ranked` are the scores, falling.
static double net_gain_top_k(const Shaping *s, int64_t width, int64_t count, const double *ranked) {
    double sum = 0.0, best = -INFINITY;
    for (int64_t i = 0, j = 0, m = 0; m < s->max_size && i + j < s->size + count; m++) {
        const double next = j >= count || (i < s->size && ranked[i] >= s->merged[j]) ? ranked[i++] : s->merged[j++];
        sum = m ? sum + next : next;
        if (sum - s->step[m + 1] > best) best = sum - s->step[m + 1];
    }
    return best - s->draft[width];
}

static double net_gain_sampled(const Shaping *s, int64_t width, int64_t count) {
    double least;
    return best_draws(s, count, &least) - (width ? s->draft[width] : 0.0);
}

// HybridExpansion: take the tree that was grown in s->looked_up, nodes from `fresh` on as not read.
static void take_looked_up(Shaping *s, int64_t size, int64_t fresh) {
    const Tree *tree = s->looked_up;
    memcpy(s->parents, tree->parents, size * sizeof(int64_t)), memcpy(s->depths, tree->depths, size * sizeof(int64_t));
    memcpy(s->tokens, tree->tokens, size * sizeof(int64_t)), memcpy(s->probs, tree->probs, size * sizeof(double));
    memcpy(s->scores, tree->scores, size * sizeof(double));
    for (int64_t i = fresh; i < size; i++) s->cache_positions[i] = -1;
    for (int64_t i = 0; i < size; i++) s->ranks[i] = i;
    s->size = size;
}

// Begin a step with what is known before the draft is asked: for HybridExpansion the looked-up nodes, else the root alone.
void tree_start(Shaping *s) {
    if (!s->text) return;
    s->looked_up->max_size = s->max_size, s->looked_up->least = s->least_score;
    take_looked_up(s, index_grow(s->text, s->store, s->looked_up, 0, 0), 0);
}

// HybridExpansion: mark a node and its unread ancestors as chosen for the next pass -> how many were not yet. Where the
// expected gains are counted, those of each are merged into s->merged.
static int64_t choose_path(Shaping *s, int64_t node, int64_t *gains) {
    int64_t added = 0;
    for (; node >= 0 && s->cache_positions[node] < 0 && !s->scratch[node]; node = s->parents[node], added++) {
        s->scratch[node] = 1;
        if (gains) *gains = merge_gains(s, s->others[node], s->expected_falling, *gains);
    }
    return added;
}

static int64_t unread_path(const Shaping *s, int64_t node) {
    int64_t length = 0;
    for (; node >= 0 && s->cache_positions[node] < 0 && !s->scratch[node]; node = s->parents[node]) length++;
    return length;
}

static void choose_none(Shaping *s) { memset(s->scratch, 0, s->size * sizeof(int64_t)); }

// HybridExpansion: the nodes after which another token than those below them is likeliest, with their unread ancestors.
static int64_t hybrid_frontier(Shaping *s) {
    double *others = s->others, *ranked = s->sorted;
    int64_t *wanted = s->order, count = 0, most = 0, width = 0, best = 0;
    for (int64_t i = 0; i < s->size; i++) others[i] = 0.0;
    for (int64_t i = 1; i < s->size; i++) others[s->parents[i]] += s->scores[i];
    for (int64_t i = 0; i < s->size; i++) {
        others[i] = s->scores[i] - others[i];
        const int first_pass = s->cache_positions[0] < 0;  // the root's pass also reads what was committed
        if (s->cache_positions[i] < 0 && s->depths[i] < s->max_depth && others[i] > 0.0 && (!i || !first_pass))
            wanted[count++] = i;
    }
    sort_falling(others, wanted, s->other, count);
    choose_none(s);
    for (; most < count && width + unread_path(s, wanted[most]) <= s->beam; most++)
        width += choose_path(s, wanted[most], 0);
    best = most;
    if (s->step && most) {
        double largest = -INFINITY;
        int64_t gains = 0, taken = 0;
        choose_none(s);
        falling(s->expected, s->expected_falling, s->branch);
        falling(s->scores, ranked, s->size);
        width = 0;
        for (int64_t next = 0;; next = next == 0 ? 1 : 2 * next) {
            const int64_t tried = next < most ? next : most;
            for (; taken < tried; taken++) width += choose_path(s, wanted[taken], &gains);
            const double net_gain = net_gain_top_k(s, width, gains, ranked);
            if (net_gain > largest) largest = net_gain, best = tried;
            if (tried == most) break;
        }
        choose_none(s);
        for (int64_t i = 0; i < best; i++) choose_path(s, wanted[i], 0);
    }
    width = 0;
    for (int64_t i = 0; i < s->size; i++)
        if (s->scratch[i]) s->frontier[width++] = i;
    return width;
}

// TopKExpansion and SampledExpansion: the most promising nodes that are worth their pass.
static int64_t candidate_frontier(Shaping *s) {
    int64_t most = unread(s), kept = 0, width = 0;
    double *expected = s->expected_falling;
    falling(s->expected, expected, s->branch);
    for (int64_t i = 0; i < most; i++)
        if (!s->sampled || s->scores[s->order[i]] * expected[0] > s->threshold) s->frontier[kept++] = s->order[i];
    most = s->sampled && s->size == s->max_size ? 0 : kept;
    if (s->step && most) {  // 0, all, or a power of two between; of equals the fewest
        double best = -INFINITY, *ranked = s->sorted;
        if (!s->sampled) falling(s->scores, ranked, s->size);
        int64_t gains = 0, merged = 0;
        for (int64_t next = 0;; next = next == 0 ? 1 : 2 * next) {
            const int64_t tried = next < most ? next : most;
            for (; merged < tried; merged++) gains = merge_gains(s, s->scores[s->frontier[merged]], expected, gains);
            const double net_gain = s->sampled ? net_gain_sampled(s, tried, gains) : net_gain_top_k(s, tried, gains, ranked);
            if (net_gain > best) best = net_gain, width = tried;
            if (tried == most) break;
        }
    } else {
        width = most;
    }
    return width;
}

// Write down what the pass over the frontier needs.
static void write_pass(Shaping *s) {
    const int64_t width = s->width, stop = s->read + width;
    for (int64_t i = 0; i < width; i++) {
        const int64_t node = s->frontier[i], last = s->root_position + s->depths[node];
        float *own = s->mask + (s->read + i) * s->most_read;
        if (node == 0)
            for (int64_t j = 0; j < s->most_read; j++) own[j] = -INFINITY;
        else
            memcpy(own, s->mask + s->cache_positions[s->parents[node]] * s->most_read, s->most_read * sizeof(float));
        own[s->read + i] = 0.0f;
        s->cache_positions[node] = s->read + i;
        s->ids[i] = s->tokens[node];
        s->pass_positions[i] = last < s->positions ? last : s->positions - 1;
        memcpy(s->pass_mask + i * stop, own, stop * sizeof(float));
    }
}

// Choose the nodes of the next pass and write down what it needs -> how many; 0 when the tree is complete.
int64_t tree_frontier(Shaping *s) {
    s->width = s->text ? hybrid_frontier(s) : candidate_frontier(s);
    write_pass(s);
    return s->width;
}

// Add the first counts[i] tokens of row i as children of node frontier[i].
static void add_children(Shaping *s, int64_t row, int64_t count, const int64_t *tokens, const double *probs, int64_t table) {
    const int64_t parent = s->frontier[row];
    for (int64_t k = 0; k < count; k++, s->size++) {
        const int64_t node = s->size;
        s->parents[node] = parent, s->ranks[node] = k + 1, s->depths[node] = s->depths[parent] + 1;
        s->tokens[node] = tokens[k], s->probs[node] = probs[k], s->cache_positions[node] = -1;
        s->scores[node] = s->scores[parent] * chance(s, table + pooled(k), probs[k]);
    }
}

static void reorder(int64_t *column, const int64_t *order, int64_t *scratch, int64_t count) {
    for (int64_t i = 0; i < count; i++) scratch[i] = column[order[i]];
    memcpy(column, scratch, count * sizeof(int64_t));
}

static void reorder_reals(double *column, const int64_t *order, double *scratch, int64_t count) {
    for (int64_t i = 0; i < count; i++) scratch[i] = column[order[i]];
    memcpy(column, scratch, count * sizeof(double));
}

// Keep the nodes of largest score, largest first.
static void keep_best(Shaping *s) {
    const int64_t size = s->size, kept = size < s->max_size ? size : s->max_size;
    int64_t *order = s->order, *renumbered = s->other;
    for (int64_t i = 0; i < size; i++) order[i] = i;
    sort_falling(s->scores, order, s->other, size);
    reorder(s->parents, order, renumbered, kept), reorder(s->ranks, order, renumbered, kept);
    reorder(s->depths, order, renumbered, kept), reorder(s->tokens, order, renumbered, kept);
    reorder(s->cache_positions, order, renumbered, kept);
    reorder_reals(s->probs, order, s->sorted, kept), reorder_reals(s->scores, order, s->sorted, kept);
    for (int64_t i = 0; i < kept; i++) renumbered[order[i]] = i;
    for (int64_t i = 1; i < kept; i++) s->parents[i] = renumbered[s->parents[i]];
    s->size = kept;
}

// Take the logits after node `row` of the frontier; different rows may be taken at the same time -> 0; 1 when they are not
// finite, 2 when memory ran out.
int tree_row(Shaping *s, int64_t row, const float *logits) {
    const int64_t vocab = s->vocab, branch = s->branch;
    float *probs = s->rows + (s->read + row) * vocab;
    int64_t *best = s->best + row * branch;
    if (!rows_softmax_one(logits, vocab, s->inverse_temperature, probs)) return 1;
    if (rows_largest(probs, 1, vocab, branch, best) < 0) return 2;
    for (int64_t k = 0; k < branch; k++) s->best_probs[row * branch + k] = probs[best[k]];
    return 0;
}

static double log_odds(double chance) {
    const double kept = chance < 1e-3 ? 1e-3 : chance > 1.0 - 1e-3 ? 1.0 - 1e-3 : chance;
    return log(kept / (1.0 - kept));
}

static double of_log_odds(double value) { return 1.0 / (1.0 + exp(-value)); }

// HybridExpansion: what the draft says of the looked-up children of the frontier changes their chances, its other likely
// tokens are added, and below these text already seen is looked up.
static void take_hybrid(Shaping *s) {
    double *shares = s->others, *weighed = s->previous;
    const int64_t old = s->size, branch = s->branch;
    int64_t size = old;
    shares[0] = 1.0;
    for (int64_t i = 1; i < old; i++) shares[i] = s->scores[i] / s->scores[s->parents[i]];
    for (int64_t row = 0; row < s->width; row++) {
        const int64_t node = s->frontier[row], *best = s->best + row * branch, first = size;
        const float *probs = s->rows + (s->read - s->width + row) * s->vocab;
        double looked_up = 0.0, both = 0.0, alone = 0.0;
        for (int64_t child = node + 1; child < old; child++) {
            if (s->parents[child] != node) continue;
            int64_t rank = 0;
            while (rank < branch && best[rank] != s->tokens[child]) rank++;
            s->probs[child] = probs[s->tokens[child]];
            const double drafted = chance(s, TABLE_MOST_LIKELY + pooled(rank), s->probs[child]);
            weighed[child] = of_log_odds(s->both[0] + s->both[1] * log_odds(shares[child]) + s->both[2] * log_odds(drafted));
            looked_up += shares[child], both += weighed[child];
        }
        for (int64_t k = 0; k < branch; k++) {
            int64_t known = 0;
            for (int64_t child = node + 1; child < old && !known; child++)
                known = s->parents[child] == node && s->tokens[child] == best[k];
            if (known) continue;
            double found = chance(s, TABLE_MOST_LIKELY + pooled(k), s->best_probs[row * branch + k]);
            if (looked_up > 0.0) {
                const double rest = log(1.0 - (looked_up < s->most_sure ? looked_up : s->most_sure));
                found = of_log_odds(s->beside[0] * rest + s->beside[1] * log_odds(found));
            }
            alone += found;
            s->parents[size] = node, s->depths[size] = s->depths[node] + 1, s->tokens[size] = best[k];
            s->probs[size] = s->best_probs[row * branch + k], s->cache_positions[size] = -1, shares[size++] = found;
        }
        const double total = both + alone > 1.0 ? both + alone : 1.0;
        for (int64_t child = node + 1; child < old; child++)
            if (s->parents[child] == node) shares[child] = weighed[child] / total;
        for (int64_t child = first; child < size; child++) shares[child] /= total;
    }
    for (int64_t i = 1; i < size; i++) s->scores[i] = s->scores[s->parents[i]] * shares[i];
    Tree *tree = s->looked_up;
    memcpy(tree->parents, s->parents, size * sizeof(int64_t)), memcpy(tree->depths, s->depths, size * sizeof(int64_t));
    memcpy(tree->tokens, s->tokens, size * sizeof(int64_t)), memcpy(tree->probs, s->probs, size * sizeof(double));
    memcpy(tree->scores, s->scores, size * sizeof(double));
    falling(s->scores, s->sorted, size);
    const double full = size >= s->max_size ? s->sorted[s->max_size - 1] : 0.0;  // what it takes to be kept
    tree->max_size = size + s->max_size, tree->least = full > s->least_score ? full : s->least_score;
    take_looked_up(s, index_grow(s->text, s->store, tree, size, old), size);
    keep_best(s);
}

// Once all rows of the frontier are taken: top-k adds children and returns 0; the sampled policy returns how many tokens are
// to be drawn after each node.
int64_t tree_taken(Shaping *s) {
    const int64_t width = s->width, branch = s->branch;
    s->read += width;
    if (s->text) {
        take_hybrid(s);
        return 0;
    }
    if (!s->sampled) {
        for (int64_t i = 0; i < width; i++)
            add_children(s, i, branch, s->best + i * branch, s->best_probs + i * branch, TABLE_MOST_LIKELY);
        keep_best(s);
        return 0;
    }
    // The least gain that one more child must have, from the rows alone: as if the most likely tokens were drawn in order.
    double *planned = s->planned;
    for (int64_t i = 0; i < width; i++) {
        double sum = 0.0;
        for (int64_t k = 0; k < branch; k++) {
            const int64_t at = i * branch + k;
            sum = k ? sum + s->best_probs[at] : s->best_probs[at];
            const double left = 1.0 - (sum - s->best_probs[at]);
            planned[at] = s->scores[s->frontier[i]] * chance_before(s, k, left, s->best_probs[at]);
            if (k && planned[at - 1] < planned[at]) planned[at] = planned[at - 1];
        }
    }
    int64_t gains = 0;
    for (int64_t i = 0; i < width; i++) gains = merge_gains(s, 1.0, planned + i * branch, gains);
    best_draws(s, gains, &s->least_gain);
    int64_t most = 0;
    for (int64_t i = 0; i < width; i++) {
        int64_t count = 0;
        for (int64_t k = 0; k < branch; k++) count += planned[i * branch + k] >= s->least_gain;
        most = count > most ? count : most;
    }
    return most + 1 < branch ? most + 1 : branch;
}

// Sampled policy: draw `ranks` tokens after node `row` of the frontier; different rows may be drawn at the same time.
// uniforms: float64 [w, ranks], not read where `draws` is 0 -> 0, or -1 when memory ran out.
int tree_draw_row(Shaping *s, int64_t row, const double *uniforms, int64_t ranks) {
    const float *probs = s->rows + (s->read - s->width + row) * s->vocab;
    int64_t *drawn = s->drawn + row * ranks;
    if (!s->draws)
        memcpy(drawn, s->best + row * s->branch, ranks * sizeof(int64_t));
    else if (rows_draw(probs, 1, s->vocab, ranks, 0, uniforms + row * ranks, drawn) < 0)
        return -1;
    for (int64_t k = 0; k < ranks; k++) s->drawn_probs[row * ranks + k] = probs[drawn[k]];
    return 0;
}

// Once all rows are drawn: add children while their expected gain is enough; each is decided on before its token is read.
void tree_drawn(Shaping *s, int64_t ranks) {
    const int64_t width = s->width, branch = s->branch;
    for (int64_t i = 0; i < width; i++) {
        const int64_t *tokens = s->drawn + i * ranks, *best = s->best + i * branch, room = s->max_size - s->size;
        const double *probs = s->drawn_probs + i * ranks;
        double sum = 0.0;
        int64_t count = 0;
        for (; count < ranks; count++) {
            sum = count ? sum + probs[count] : probs[count];
            double largest = 0.0;  // not drawn yet, among the most likely
            for (int64_t b = 0; b < branch; b++) {
                int64_t taken = 0;
                for (int64_t k = 0; k < count; k++) taken |= tokens[k] == best[b];
                if (!taken) largest = fmax(largest, s->best_probs[i * branch + b]);
            }
            const double left = 1.0 - (sum - probs[count]);
            if (!(s->scores[s->frontier[i]] * chance_before(s, count, left, largest) >= s->least_gain)) break;
        }
        add_children(s, i, count < room ? count : room, tokens, probs, TABLE_AFTER);
    }
}

// `tree_row` and `tree_taken` for logits float32 [w, ..] -> what the latter returns; -1 when logits are not finite, -2 when
// memory ran out.
int64_t tree_read(Shaping *s, const float *logits, int64_t stride) {
    int failed = 0;
#pragma omp parallel for num_threads((int)s->threads) if (s->width >= MANY) reduction(| : failed)
    for (int64_t row = 0; row < s->width; row++) failed |= tree_row(s, row, logits + row * stride);
    if (failed) return failed & 1 ? -1 : -2;
    return tree_taken(s);
}

// `tree_draw_row` and `tree_drawn` for all rows -> 0, or -2 when memory ran out.
int64_t tree_draw(Shaping *s, const double *uniforms, int64_t ranks) {
    for (int64_t row = 0; row < s->width; row++)
        if (tree_draw_row(s, row, uniforms, ranks) < 0) return -2;
    tree_drawn(s, ranks);
    return 0;
}

// Renumber the nodes breadth-first, siblings by rank, as a `TokenTree` has them.
static void number_breadth_first(Shaping *s) {
    const int64_t size = s->size;
    int64_t *order = s->order, *first = s->other, *next = s->next;
    for (int64_t i = 0; i < size; i++) order[i] = i, s->previous[i] = (double)-s->ranks[i];
    sort_falling(s->previous, order, s->other, size);
    for (int64_t i = 0; i < size; i++) first[i] = -1;
    for (int64_t i = size - 1; i >= 0; i--)  // from the last rank to the first: each list begins with rank 1
        if (order[i]) next[order[i]] = first[s->parents[order[i]]], first[s->parents[order[i]]] = order[i];
    int64_t count = 1, *parents = s->scratch;
    order[0] = 0, parents[0] = -1;
    for (int64_t i = 0; i < count; i++)
        for (int64_t child = first[order[i]]; child >= 0; child = next[child], count++)
            order[count] = child, parents[count] = i;
    memcpy(s->parents, parents, size * sizeof(int64_t));
    reorder(s->ranks, order, next, size), reorder(s->depths, order, next, size);
    reorder(s->tokens, order, next, size), reorder(s->cache_positions, order, next, size);
    reorder_reals(s->probs, order, s->sorted, size), reorder_reals(s->scores, order, s->sorted, size);
}

// Write down the kept tree's children and mask, as walks and passes need them; nodes are numbered breadth-first.
static void describe(Shaping *s) {
    const int64_t size = s->size;
    for (int64_t i = 0; i < size; i++) s->firsts[i] = size, s->counts[i] = 0;
    for (int64_t i = size - 1; i > 0; i--) s->firsts[s->parents[i]] = i, s->counts[s->parents[i]]++;
    for (int64_t i = 0; i < size; i++) {
        float *own = s->sees + i * size;
        if (i)
            memcpy(own, s->sees + s->parents[i] * size, size * sizeof(float));
        else
            for (int64_t j = 0; j < size; j++) own[j] = -INFINITY;
        own[i] = 0.0f;
    }
}

// Leave out nodes that gain less than they cost, and number the others breadth-first -> how many nodes go to the target.
int64_t tree_kept(Shaping *s) {
    if (!s->sampled && s->step) {
        double sum = 0.0, best = -INFINITY;
        int64_t kept = 1;
        for (int64_t i = 0; i < s->size; i++) {
            sum = i ? sum + s->scores[i] : s->scores[i];
            if (sum - s->step[i + 1] > best) best = sum - s->step[i + 1], kept = i + 1;
        }
        s->size = kept;
    }
    for (int64_t i = 0; s->text && i < s->size; i++) s->ranks[i] = i;  // siblings in the order of their chances
    number_breadth_first(s);
    describe(s);
    return s->size;
}
