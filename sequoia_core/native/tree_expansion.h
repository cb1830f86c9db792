// A tree that grows while it is drafted, for callers that run the draft's passes between the calls: tree_expansion.py
// from Python, llama_x86.c in one call. A step asks `tree_frontier` for the nodes of a pass, gives `tree_row` the logits after
// each of them, calls `tree_taken`, draws with `tree_draw_row` and `tree_drawn` where that wants it, and so on until a frontier
// is empty; then `tree_kept`. Shapes: n = nodes so far, w = nodes of the pass under way (the frontier), k = ranks.

#pragma once

#include "text_index.h"

typedef struct {
    int64_t max_size, max_depth, beam, branch, most_read;
    int64_t sampled, draws;            // SampledExpansion or TopKExpansion; whether tokens are drawn or the most likely taken
    int64_t vocab, threads;
    int64_t root_position;             // of this step
    int64_t bins;
    const double *centres, *values;    // [bins], [tables, bins]; values NULL: the draft's own probability is the chance
    const double *mass_edges;          // [2]
    const double *expected;            // [branch]
    const double *step, *draft;        // [max_size + 1], [beam + 1]; NULL where nothing is counted
    double gain, threshold, least_gain;  // least_gain: that one more child of this frontier needs, kept from reading to drawing
    float inverse_temperature, padding;
    int64_t size, width, read;         // n, w, how many nodes the draft has read in this step
    int64_t *parents, *ranks, *depths, *tokens, *cache_positions, *from_text;  // [2 max_size + beam * branch]
    double *probs, *scores;
    int64_t *frontier, *ids, *pass_positions;  // [beam]: the pass's nodes, their tokens and positions
    float *pass_mask, *mask, *rows;    // [beam * most_read], [most_read, most_read] over cache positions, [most_read, vocab]
    int64_t *best, *drawn;             // tokens: [beam, branch], [beam, 2 branch]
    double *best_probs, *drawn_probs, *planned;  // [beam, branch], but the drawn ones [beam, 2 branch]
    int64_t *order, *other, *next, *scratch;  // [2 max_size + beam * branch] each
    int64_t *firsts, *counts;          // [max_size]: of the tree that is kept: first child (size for none), children
    float *sees;                       // [n, n] of it: 0 where a row is the node itself or below it, -inf elsewhere
    double *sorted, *previous, *merged, *expected_falling;  // the same
    Index *text, *store;               // the text under way and the index; NULL where nothing is looked up
    Tree *looked_up;                   // its buffers, for 2 max_size + beam * branch nodes
    double *others;                    // [2 max_size + beam * branch]
    double least_score, most_sure;     // see `decoding/growing/running_lookup.py`
    double both[3], beside[2];
    double *weights, *totals;          // [beam]: `sampled_expansion._Read.looked_up` and `.total` of each row
    int64_t draw_ranks;                // how many of the tokens drawn after a node may become its children
    float *first_rows;                 // [most_read, vocab], rows cut by top-k and top-p, of first drawn children; or NULL
    double top_p;
    int64_t top_k;
} Shaping;

void tree_start(Shaping *s);
int64_t tree_frontier(Shaping *s);
int tree_row(Shaping *s, int64_t row, const float *logits);
int64_t tree_taken(Shaping *s);
int tree_draw_row(Shaping *s, int64_t row, const double *uniforms, int64_t ranks);
void tree_drawn(Shaping *s, int64_t ranks);
int64_t tree_kept(Shaping *s);
