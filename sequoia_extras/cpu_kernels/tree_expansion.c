// Trees that grow while they are drafted. The results equal those of top_k_expansion.py and sampled_expansion.py in
// dynamic_trees exactly, so change both. Built with sampling_ops.c; tree_expansion.h documents the order of calls.

#include "tree_expansion.h"

#include <math.h>
#include <string.h>

#ifdef __clang__  // fused multiply-add would round differently from NumPy
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

int rows_softmax_one(const float *logits, int64_t size, float inverse, float *probs);
int rows_largest(const float *x, int64_t rows, int64_t size, int64_t k, int64_t *found);
int rows_cut_one(const float *probs, int64_t size, int64_t top_k, double top_p, float *kept);
int rows_draw(const float *probs, const float *first, int64_t rows, int64_t size, int64_t k, int replace,
              const double *uniforms, int64_t *found);

enum { TABLE_MOST_LIKELY = 0, TABLE_AFTER = 3, TABLE_BEFORE = 6, POOLED = 2 };  // as in acceptance/calibration.py
enum { MANY = 4 };  // fewer rows are processed by one thread

// Sort order [count] by descending keys; the sort is stable.
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

// Sort values [count] in descending order; efficient for few or nearly sorted values.
static void falling(const double *values, double *sorted, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int64_t to = i;
        for (; to && sorted[to - 1] < values[i]; to--) sorted[to] = sorted[to - 1];
        sorted[to] = values[i];
    }
}

static double chance(const TreeBuilder *s, int64_t table, double prob) {
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

static double chance_before(const TreeBuilder *s, int64_t rank, double left, double largest) {
    const int64_t mass = (s->mass_edges[0] <= left) + (s->mass_edges[1] <= left);
    return chance(s, rank == 0 ? TABLE_BEFORE : TABLE_BEFORE + 1 + 3 * (pooled(rank) - 1) + mass, largest);
}

// Collect in s->order the nodes that the draft may read next, best first; return their number, at most `beam`.
static int64_t unread(const TreeBuilder *s) {
    int64_t count = 0;
    for (int64_t i = 0; i < s->size; i++)
        if (s->cache_positions[i] < 0 && s->depths[i] < s->max_depth && s->scores[i] > 0.0) s->order[count++] = i;
    sort_falling(s->scores, s->order, s->other, count);
    return count < s->beam ? count : s->beam;
}

// Merge the products of a score and `branch` descending probabilities into s->merged, which has `count` descending
// numbers; retain the largest ones and return their number, at most max_size.
static int64_t merge_gains(const TreeBuilder *s, double score, const double *chances, int64_t count) {
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

// Return the net gain of the best number of draws, given `count` gains in s->merged; *least is the smallest gain used,
// infinite if none is used.
static double best_draws(const TreeBuilder *s, int64_t count, double *least) {
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

// Return expected tokens minus cost after reading the first `width` frontier nodes, with `count` gains in s->merged.
// For TopKExpansion; `ranked` contains the scores in descending order.
static double net_gain_top_k(const TreeBuilder *s, int64_t width, int64_t count, const double *ranked) {
    double sum = 0.0, best = -INFINITY;
    for (int64_t i = 0, j = 0, m = 0; m < s->max_size && i + j < s->size + count; m++) {
        const double next = j >= count || (i < s->size && ranked[i] >= s->merged[j]) ? ranked[i++] : s->merged[j++];
        sum = m ? sum + next : next;
        if (sum - s->step[m + 1] > best) best = sum - s->step[m + 1];
    }
    return best - s->draft[width];
}

static double net_gain_sampled(const TreeBuilder *s, int64_t width, int64_t count) {
    double least;
    return best_draws(s, count, &least) - (width ? s->draft[width] : 0.0);
}

// Look-ups: copy the tree grown in s->looked_up; node `fresh` and all later nodes are unread.
static void take_looked_up(TreeBuilder *s, int64_t size, int64_t fresh) {
    const Tree *tree = s->looked_up;
    memcpy(s->parents, tree->parents, size * sizeof(int64_t)), memcpy(s->depths, tree->depths, size * sizeof(int64_t));
    memcpy(s->tokens, tree->tokens, size * sizeof(int64_t)), memcpy(s->probs, tree->probs, size * sizeof(double));
    memcpy(s->scores, tree->scores, size * sizeof(double));
    for (int64_t i = fresh; i < size; i++) s->cache_positions[i] = -1, s->from_text[i] = i > 0, s->ranks[i] = 0;
    s->size = size;
}

// Start a step with the nodes known before drafting: the looked-up ones, or only the root.
void tree_start(TreeBuilder *s) {
    if (!s->text) return;
    s->looked_up->max_size = s->max_size, s->looked_up->least = s->least_score;
    take_looked_up(s, index_grow(s->text, s->store, s->looked_up, 0, 0), 0);
}

// Look-ups: choose a node and its unread ancestors for the next pass; return how many are new. If there are expected
// gains, merge those of these nodes into s->merged.
static int64_t choose_path(TreeBuilder *s, int64_t node, int64_t *gains) {
    int64_t added = 0;
    for (; node >= 0 && s->cache_positions[node] < 0 && !s->scratch[node]; node = s->parents[node], added++) {
        s->scratch[node] = 1;
        if (gains) *gains = merge_gains(s, s->others[node], s->expected_falling, *gains);
    }
    return added;
}

static int64_t unread_path(const TreeBuilder *s, int64_t node) {
    int64_t length = 0;
    for (; node >= 0 && s->cache_positions[node] < 0 && !s->scratch[node]; node = s->parents[node]) length++;
    return length;
}

static void choose_none(TreeBuilder *s) { memset(s->scratch, 0, s->size * sizeof(int64_t)); }

// Look-ups, sampled: return whether a node must stay because its siblings may have been drawn after its parent was read.
static int settled(const TreeBuilder *s, int64_t node) { return !node || s->cache_positions[s->parents[node]] >= 0; }

static int64_t settled_nodes(const TreeBuilder *s) {
    int64_t count = 0;
    for (int64_t i = 0; i < s->size; i++) count += settled(s, i);
    return count;
}

static double largest_expected(const TreeBuilder *s) {
    double largest = s->expected[0];
    for (int64_t k = 1; k < s->branch; k++) largest = fmax(largest, s->expected[k]);
    return largest;
}

// Look-ups: choose nodes whose most likely next token is not among their children, and their unread ancestors.
static int64_t hybrid_frontier(TreeBuilder *s) {
    double *others = s->others, *ranked = s->sorted;
    int64_t *wanted = s->order, count = 0, most = 0, width = 0, best = 0;
    const double least = s->sampled ? s->threshold : 0.0, largest_gain = s->sampled ? largest_expected(s) : 1.0;
    if (s->sampled && settled_nodes(s) >= s->max_size) return 0;
    for (int64_t i = 0; i < s->size; i++) others[i] = 0.0;
    for (int64_t i = 1; i < s->size; i++) others[s->parents[i]] += s->scores[i];
    for (int64_t i = 0; i < s->size; i++) {
        others[i] = s->scores[i] - others[i];
        const int first_pass = s->cache_positions[0] < 0;  // the root's pass also reads committed tokens
        if (s->cache_positions[i] < 0 && s->depths[i] < s->max_depth && others[i] * largest_gain > least && (!i || !first_pass))
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

// Without look-ups: choose the best nodes, as many as are worth their pass.
static int64_t candidate_frontier(TreeBuilder *s) {
    int64_t most = unread(s), kept = 0, width = 0;
    double *expected = s->expected_falling;
    if (s->sampled || s->step) falling(s->expected, expected, s->branch);  // otherwise ranks have no expected gain
    for (int64_t i = 0; i < most; i++)
        if (!s->sampled || s->scores[s->order[i]] * expected[0] > s->threshold) s->frontier[kept++] = s->order[i];
    most = s->sampled && s->size == s->max_size ? 0 : kept;
    if (s->step && most) {  // candidate widths: 0, all, or a power of two in between; the smallest one wins ties
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

// Write the inputs of the pass over the frontier.
static void write_pass(TreeBuilder *s) {
    const int64_t width = s->width, stop = s->read + width;
    for (int64_t i = 0; i < width; i++) {
        const int64_t node = s->frontier[i];
        float *own = s->mask + (s->read + i) * s->most_read;
        if (node == 0)
            for (int64_t j = 0; j < s->most_read; j++) own[j] = -INFINITY;
        else
            memcpy(own, s->mask + s->cache_positions[s->parents[node]] * s->most_read, s->most_read * sizeof(float));
        own[s->read + i] = 0.0f;
        s->cache_positions[node] = s->read + i;
        s->ids[i] = s->tokens[node];
        s->pass_positions[i] = s->root_position + s->depths[node];
        memcpy(s->pass_mask + i * stop, own, stop * sizeof(float));
    }
}

// Choose the nodes of the next pass and write its inputs; return their number, 0 when the tree is complete.
int64_t tree_frontier(TreeBuilder *s) {
    s->width = s->text ? hybrid_frontier(s) : candidate_frontier(s);
    write_pass(s);
    return s->width;
}

// Add the first `count` tokens of a row as children of its frontier node.
static void add_children(TreeBuilder *s, int64_t row, int64_t count, const int64_t *tokens, const double *probs, int64_t table) {
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

static void reorder_facts(TreeBuilder *s, const int64_t *order, int64_t *scratch, int64_t count) {
    reorder(s->ranks, order, scratch, count), reorder(s->depths, order, scratch, count);
    reorder(s->tokens, order, scratch, count), reorder(s->cache_positions, order, scratch, count);
    reorder(s->from_text, order, scratch, count);
    reorder_reals(s->probs, order, s->sorted, count), reorder_reals(s->scores, order, s->sorted, count);
}

// Retain the first `kept` nodes of s->order, in that order; each node comes after its parent.
static void keep(TreeBuilder *s, int64_t kept) {
    int64_t *order = s->order, *renumbered = s->other;
    reorder(s->parents, order, renumbered, kept), reorder_facts(s, order, renumbered, kept);
    for (int64_t i = 0; i < kept; i++) renumbered[order[i]] = i;
    for (int64_t i = 1; i < kept; i++) s->parents[i] = renumbered[s->parents[i]];
    s->size = kept;
}

// Retain the nodes with the largest scores, in descending order.
static void keep_best(TreeBuilder *s) {
    const int64_t size = s->size;
    for (int64_t i = 0; i < size; i++) s->order[i] = i;
    sort_falling(s->scores, s->order, s->other, size);
    keep(s, size < s->max_size ? size : s->max_size);
}

// Read the logits after frontier node `row`; rows may be read concurrently. Return 0 on success, 1 if logits are not
// finite, 2 if out of memory, 4 for a looked-up token outside the vocabulary.
int tree_row(TreeBuilder *s, int64_t row, const float *logits) {
    const int64_t vocab = s->vocab, branch = s->branch;
    float *probs = s->rows + (s->read + row) * vocab;
    int64_t *best = s->best + row * branch;
    for (int64_t child = s->frontier[row] + 1; s->text && child < s->size; child++)
        if (s->parents[child] == s->frontier[row] && (uint64_t)s->tokens[child] >= (uint64_t)vocab) return 4;
    if (!rows_softmax_one(logits, vocab, s->inverse_temperature, probs)) return 1;
    if (rows_largest(probs, 1, vocab, branch, best) < 0) return 2;
    if (s->first_rows && rows_cut_one(probs, vocab, s->top_k, s->top_p, s->first_rows + (s->read + row) * vocab) < 0) return 2;
    for (int64_t k = 0; k < branch; k++) s->best_probs[row * branch + k] = probs[best[k]];
    return 0;
}

static double log_odds(double chance) {
    const double kept = chance < 1e-3 ? 1e-3 : chance > 1.0 - 1e-3 ? 1.0 - 1e-3 : chance;
    return log(kept / (1.0 - kept));
}

static double of_log_odds(double value) { return 1.0 / (1.0 + exp(-value)); }

// Compute the probability of each node given its parent.
static double *shares_of(TreeBuilder *s) {
    double *shares = s->others;
    shares[0] = 1.0;
    for (int64_t i = 1; i < s->size; i++) shares[i] = s->scores[i] / s->scores[s->parents[i]];
    return shares;
}

// Look-ups: read the probabilities of the looked-up children of the node of row `row`, among the first `size` nodes;
// s->previous receives the probabilities that combine draft and text. Return their sum; *looked_up is the sum of the
// probabilities from text alone.
static double weigh_children(TreeBuilder *s, int64_t row, int64_t size, double *looked_up) {
    const int64_t node = s->frontier[row], branch = s->branch, *best = s->best + row * branch;
    const float *probs = s->rows + (s->read - s->width + row) * s->vocab;
    double *shares = s->others, *weighed = s->previous, both = 0.0;
    const double gain = s->looked_up->gain;
    *looked_up = 0.0;
    for (int64_t child = node + 1; child < size; child++) {
        if (s->parents[child] != node) continue;
        int64_t rank = 0;
        while (rank < branch && best[rank] != s->tokens[child]) rank++;
        s->probs[child] = probs[s->tokens[child]];
        const double drafted = chance(s, TABLE_MOST_LIKELY + pooled(rank), s->probs[child]);
        const double seen = shares[child] / gain;
        weighed[child] = of_log_odds(s->combined[0] + s->combined[1] * log_odds(seen) + s->combined[2] * log_odds(drafted));
        *looked_up += seen, both += weighed[child];
    }
    return both;
}

// Look-ups: return the probability of a drafted token whose siblings were looked up.
static double chance_beside(const TreeBuilder *s, double looked_up, double drafted) {
    if (looked_up <= 0.0) return drafted;
    const double rest = log(1.0 - (looked_up < s->max_total ? looked_up : s->max_total));
    return of_log_odds(s->draft_only[0] * rest + s->draft_only[1] * log_odds(drafted));
}

// Return whether a node has a child with this token among the first `size` nodes.
static int has_child(const TreeBuilder *s, int64_t node, int64_t token, int64_t size) {
    for (int64_t child = node + 1; child < size; child++)
        if (s->parents[child] == node && s->tokens[child] == token) return 1;
    return 0;
}

// Look-ups: look up continuations below nodes `old` to `size` - 1, which were just added.
static void look_up_below(TreeBuilder *s, int64_t size, int64_t old, double least) {
    Tree *tree = s->looked_up;
    memcpy(tree->parents, s->parents, size * sizeof(int64_t)), memcpy(tree->depths, s->depths, size * sizeof(int64_t));
    memcpy(tree->tokens, s->tokens, size * sizeof(int64_t)), memcpy(tree->probs, s->probs, size * sizeof(double));
    memcpy(tree->scores, s->scores, size * sizeof(double));
    tree->max_size = size + s->max_size, tree->least = least > s->least_score ? least : s->least_score;
    take_looked_up(s, index_grow(s->text, s->store, tree, size, old), size);
}

// Look-ups: update the probabilities of the frontier's looked-up children with those of the draft, add the draft's other
// likely tokens, and look up continuations below these.
static void take_hybrid(TreeBuilder *s) {
    double *shares = shares_of(s), *weighed = s->previous;
    const int64_t old = s->size, branch = s->branch;
    int64_t size = old;
    for (int64_t row = 0; row < s->width; row++) {
        const int64_t node = s->frontier[row], *best = s->best + row * branch, first = size;
        double looked_up, alone = 0.0;
        const double both = weigh_children(s, row, old, &looked_up);
        for (int64_t k = 0; k < branch; k++) {
            if (has_child(s, node, best[k], old)) continue;
            const double likely = chance(s, TABLE_MOST_LIKELY + pooled(k), s->best_probs[row * branch + k]);
            const double found = chance_beside(s, looked_up, likely);
            alone += found;
            s->parents[size] = node, s->depths[size] = s->depths[node] + 1, s->tokens[size] = best[k];
            s->probs[size] = s->best_probs[row * branch + k], s->cache_positions[size] = -1, s->from_text[size] = 0;
            shares[size++] = found;
        }
        const double total = both + alone > 1.0 ? both + alone : 1.0;
        for (int64_t child = node + 1; child < old; child++)
            if (s->parents[child] == node) shares[child] = weighed[child] / total;
        for (int64_t child = first; child < size; child++) shares[child] /= total;
    }
    for (int64_t i = 1; i < size; i++) s->scores[i] = s->scores[s->parents[i]] * shares[i];
    falling(s->scores, s->sorted, size);
    look_up_below(s, size, old, size >= s->max_size ? s->sorted[s->max_size - 1] : 0.0);  // the last argument is the score that a node needs to stay
    keep_best(s);
}

// Look-ups, sampled: return a row's smallest gain so far.
static void fall_to(double *gains, int64_t k) {
    if (k && gains[k - 1] < gains[k]) gains[k] = gains[k - 1];
}

// Look-ups, sampled: remove the pass's children whose gain is too small, and their descendants; retain at most `most`.
static void leave_out(TreeBuilder *s, int64_t most) {
    int64_t *stay = s->scratch, *order = s->order, *places = s->next, count = 0, wanted = 0;
    for (int64_t i = 0; i < s->size; i++) {
        stay[i] = !(i && s->cache_positions[s->parents[i]] >= s->read - s->width);
        if (!stay[i] && s->scores[i] >= s->least_gain) order[wanted++] = i;
    }
    sort_falling(s->scores, order, s->other, wanted);
    for (int64_t i = 0; i < wanted && i < most; i++) stay[order[i]] = 1;
    for (int64_t i = 0; i < s->size; i++) {
        stay[i] = stay[i] && (!i || stay[s->parents[i]]);
        places[i] = stay[i] ? count : -1;
        if (stay[i]) order[count++] = i;
    }
    keep(s, count);
    for (int64_t row = 0; row < s->width; row++) s->frontier[row] = places[s->frontier[row]];
}

// Look-ups, sampled: rank a node's looked-up children by score; return their number.
static int64_t rank_children(TreeBuilder *s, int64_t node) {
    int64_t *order = s->order, count = 0;
    for (int64_t child = node + 1; node >= 0 && child < s->size; child++)
        if (s->parents[child] == node) order[count++] = child;
    sort_falling(s->scores, order, s->other, count);
    for (int64_t i = 0; i < count; i++) s->ranks[order[i]] = i + 1;
    return count;
}

// Look-ups, sampled: weight the frontier's looked-up children and decide which ones stay; return how many tokens to draw
// after each node.
static int64_t take_in_turn(TreeBuilder *s) {
    const int64_t width = s->width, branch = s->branch;
    double *shares = shares_of(s);
    for (int64_t row = 0; row < width; row++) {
        const int64_t node = s->frontier[row];
        double *gains = s->planned + row * branch, given = 0.0, sum = 0.0, alone = 0.0, looked_up;
        const double both = weigh_children(s, row, s->size, &looked_up);
        int64_t count = 0;
        for (int64_t child = node + 1; child < s->size; child++)
            if (s->parents[child] == node) given += s->probs[child];
        for (int64_t k = 0; k < branch; k++) {
            const double prob = s->best_probs[row * branch + k];
            if (has_child(s, node, s->best[row * branch + k], s->size)) continue;
            sum = count ? sum + prob : prob;
            gains[count] = chance_beside(s, looked_up, chance_before(s, count, 1.0 - given - (sum - prob), prob));
            alone += gains[count++];
        }
        const double total = both + alone > 1.0 ? both + alone : 1.0;
        for (int64_t child = node + 1; child < s->size; child++)
            if (s->parents[child] == node) shares[child] = s->previous[child] / total;
        for (int64_t k = 0; k < count; k++) gains[k] /= total;
        for (int64_t k = count; k < branch; k++) gains[k] = 0.0;
        s->weights[row] = looked_up, s->totals[row] = total;
    }
    for (int64_t i = 1; i < s->size; i++) s->scores[i] = s->scores[s->parents[i]] * shares[i];
    int64_t candidates = 0, size = 0, ranks = 0, most = 0;
    double *falls = s->sorted;
    for (int64_t row = 0; row < width; row++)
        for (int64_t k = 0; k < branch; k++) {
            double *gains = s->planned + row * branch;
            gains[k] *= s->scores[s->frontier[row]];
            fall_to(gains, k);
        }
    for (int64_t i = 0; i < s->size; i++) {
        const int fresh = i && s->cache_positions[s->parents[i]] >= s->read - width;
        if (settled(s, i) && !fresh)
            size++;
        else
            falls[candidates++] = s->scores[i];
    }
    for (int64_t i = 0; i < candidates; i++) s->merged[i] = falls[i];
    falling(s->merged, falls, candidates);
    candidates = candidates < s->max_size ? candidates : s->max_size;
    memcpy(s->merged, falls, candidates * sizeof(double));
    for (int64_t row = 0; row < width; row++) candidates = merge_gains(s, 1.0, s->planned + row * branch, candidates);
    const int64_t held = s->size;
    s->size = size;
    best_draws(s, candidates, &s->least_gain);
    s->size = held;
    for (int64_t row = 0; row < width; row++) {
        int64_t count = 0;
        for (int64_t k = 0; k < branch; k++) count += s->planned[row * branch + k] >= s->least_gain;
        ranks = count > ranks ? count : ranks;
    }
    s->draw_ranks = ranks + 1 < branch ? ranks + 1 : branch;
    leave_out(s, s->max_size - size);
    for (int64_t row = 0; row < width; row++) {
        const int64_t children = rank_children(s, s->frontier[row]);
        most = children > most ? children : most;
    }
    return s->draw_ranks + most < s->vocab ? s->draw_ranks + most : s->vocab;
}

// Look-ups, sampled: retain settled nodes, then the others, both in descending order of likelihood, up to the size
// limit.
static void keep_settled(TreeBuilder *s) {
    int64_t count = 0, *order = s->order;
    for (int stay = 1; stay >= 0; stay--) {
        const int64_t first = count;
        for (int64_t i = 0; i < s->size; i++)
            if (settled(s, i) == stay) order[count++] = i;
        sort_falling(s->scores, order + first, s->other, count - first);
    }
    keep(s, count < s->max_size ? count : s->max_size);
}

// Look-ups, sampled: after each frontier node, add those of the `drawn` tokens that were not looked up as its children,
// as long as their expected gain is sufficient; each decision is made before the token is read.
static void add_in_turn(TreeBuilder *s, int64_t drawn) {
    const int64_t branch = s->branch, old = s->size;
    int64_t size = old, room = s->max_size;
    for (int64_t i = 0; i < old; i++) room -= settled(s, i);
    for (int64_t row = 0; row < s->width; row++) {
        const int64_t node = s->frontier[row], *tokens = s->drawn + row * drawn, *best = s->best + row * branch;
        double given = 0.0, sum = 0.0;
        int64_t known = 0, count = 0, going = 1;
        if (node < 0) continue;
        for (int64_t child = node + 1; child < old; child++)
            if (s->parents[child] == node) given += s->probs[child], known++;
        for (int64_t at = 0; at < drawn && count < s->draw_ranks && going; at++) {
            if (has_child(s, node, tokens[at], old)) continue;
            const double prob = s->drawn_probs[row * drawn + at];
            double largest = 0.0;  // among the most likely tokens not drawn yet
            sum = count ? sum + prob : prob;
            for (int64_t b = 0; b < branch; b++) {
                int taken = has_child(s, node, best[b], old);
                for (int64_t k = 0; k < at; k++) taken |= tokens[k] == best[b];
                if (!taken) largest = fmax(largest, s->best_probs[row * branch + b]);
            }
            const double before = chance_before(s, count, 1.0 - given - (sum - prob), largest);
            going = s->scores[node] * (chance_beside(s, s->weights[row], before) / s->totals[row]) >= s->least_gain;
            if (!going || room <= 0) break;
            const double after = chance(s, TABLE_AFTER + pooled(count), prob);
            s->parents[size] = node, s->depths[size] = s->depths[node] + 1, s->tokens[size] = tokens[at];
            s->probs[size] = prob, s->cache_positions[size] = -1, s->from_text[size] = 0;
            s->ranks[size] = known + ++count, room--;
            s->scores[size++] = s->scores[node] * (chance_beside(s, s->weights[row], after) / s->totals[row]);
        }
    }
    look_up_below(s, size, old, s->threshold);
    keep_settled(s);
}

// Call this after all rows of the frontier were read: the top-k policy adds children and returns 0; the sampled policy
// returns how many tokens to draw after each node.
int64_t tree_taken(TreeBuilder *s) {
    const int64_t width = s->width, branch = s->branch;
    s->read += width;
    if (s->text && s->sampled) return take_in_turn(s);
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
    // The gain required for one more child is computed from the rows alone, as if the most likely tokens were drawn in
    // order.
    double *planned = s->planned;
    for (int64_t i = 0; i < width; i++) {
        double sum = 0.0;
        for (int64_t k = 0; k < branch; k++) {
            const int64_t at = i * branch + k;
            sum = k ? sum + s->best_probs[at] : s->best_probs[at];
            const double left = 1.0 - (sum - s->best_probs[at]);
            planned[at] = s->scores[s->frontier[i]] * chance_before(s, k, left, s->best_probs[at]);
            fall_to(planned + i * branch, k);
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

// Sampled policy: draw `ranks` tokens after frontier node `row`; rows may be processed concurrently.
// uniforms: float64 [w, ranks], ignored if `draws` is 0. Return 0, or -1 if out of memory.
int tree_draw_row(TreeBuilder *s, int64_t row, const double *uniforms, int64_t ranks) {
    const int64_t place = (s->read - s->width + row) * s->vocab, node = s->frontier[row];
    const float *probs = s->rows + place;
    float *first = s->first_rows ? s->first_rows + place : NULL;
    int64_t *drawn = s->drawn + row * ranks;
    for (int64_t child = node + 1; first && node >= 0 && child < s->size; child++)  // looked-up children
        if (s->parents[child] == node) first[s->tokens[child]] = 0.0f;
    if (!s->draws && ranks <= s->branch)
        memcpy(drawn, s->best + row * s->branch, ranks * sizeof(int64_t));
    else if (!s->draws && rows_largest(probs, 1, s->vocab, ranks, drawn) < 0)
        return -1;
    else if (s->draws && rows_draw(probs, first, 1, s->vocab, ranks, 0, uniforms + row * ranks, drawn) < 0)
        return -1;
    for (int64_t k = 0; k < ranks; k++) s->drawn_probs[row * ranks + k] = probs[drawn[k]];
    return 0;
}

// Call this after the draws for all rows: add children as long as their expected gain is sufficient, which is decided
// before their tokens are read.
void tree_drawn(TreeBuilder *s, int64_t ranks) {
    const int64_t width = s->width, branch = s->branch;
    if (s->text) {
        add_in_turn(s, ranks);
        return;
    }
    for (int64_t i = 0; i < width; i++) {
        const int64_t *tokens = s->drawn + i * ranks, *best = s->best + i * branch, room = s->max_size - s->size;
        const double *probs = s->drawn_probs + i * ranks;
        double sum = 0.0;
        int64_t count = 0;
        for (; count < ranks; count++) {
            sum = count ? sum + probs[count] : probs[count];
            double largest = 0.0;  // among the most likely tokens not drawn yet
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

// Call `tree_row` for each row of logits, float32 [w, ..], then `tree_taken`, and return the result of the latter; -1
// if logits are not finite, -2 if out of memory, -3 for a looked-up token outside the vocabulary.
int64_t tree_read(TreeBuilder *s, const float *logits, int64_t stride) {
    int failed = 0;
#pragma omp parallel for num_threads((int)s->threads) if (s->width >= MANY) reduction(| : failed)
    for (int64_t row = 0; row < s->width; row++) failed |= tree_row(s, row, logits + row * stride);
    if (failed) return failed & 4 ? -3 : failed & 1 ? -1 : -2;
    return tree_taken(s);
}

// Call `tree_draw_row` for all rows and `tree_drawn`; return 0, or -2 if out of memory.
int64_t tree_draw(TreeBuilder *s, const double *uniforms, int64_t ranks) {
    for (int64_t row = 0; row < s->width; row++)
        if (tree_draw_row(s, row, uniforms, ranks) < 0) return -2;
    tree_drawn(s, ranks);
    return 0;
}

// Renumber the nodes breadth-first, siblings by rank, as in a `TokenTree`.
static void number_breadth_first(TreeBuilder *s) {
    const int64_t size = s->size;
    int64_t *order = s->order, *first = s->other, *next = s->next;
    for (int64_t i = 0; i < size; i++) order[i] = i, s->previous[i] = (double)-s->ranks[i];
    sort_falling(s->previous, order, s->other, size);
    for (int64_t i = 0; i < size; i++) first[i] = -1;
    for (int64_t i = size - 1; i >= 0; i--)  // from the last rank to the first, so that each list starts with the first rank
        if (order[i]) next[order[i]] = first[s->parents[order[i]]], first[s->parents[order[i]]] = order[i];
    int64_t count = 1, *parents = s->scratch;
    order[0] = 0, parents[0] = -1;
    for (int64_t i = 0; i < count; i++)
        for (int64_t child = first[order[i]]; child >= 0; child = next[child], count++)
            order[count] = child, parents[count] = i;
    memcpy(s->parents, parents, size * sizeof(int64_t));
    reorder_facts(s, order, next, size);
}

// Write the children and the mask of the final tree, for walks and passes; nodes are numbered breadth-first.
static void describe(TreeBuilder *s) {
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

// Remove nodes that gain less than they cost, and number the others breadth-first; return the size of the final tree.
int64_t tree_kept(TreeBuilder *s) {
    if (s->step && (s->text || !s->sampled)) {
        const int64_t least = s->sampled ? settled_nodes(s) : 1;  // settled nodes come first
        double sum = 0.0, best = -INFINITY;
        int64_t kept = least;
        for (int64_t i = 0; i < s->size; i++) {
            sum = i ? sum + s->scores[i] : s->scores[i];
            if (i + 1 >= least && sum - s->step[i + 1] > best) best = sum - s->step[i + 1], kept = i + 1;
        }
        s->size = kept;
    }
    for (int64_t i = 0; s->text && i < s->size; i++)
        if (!s->sampled || !settled(s, i)) s->ranks[i] = i;  // siblings in descending order of probability
    number_breadth_first(s);
    describe(s);
    return s->size;
}
