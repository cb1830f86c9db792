// A tree that grows while it is drafted. The caller runs the draft's passes between the calls: tree_expansion.py does
// so in Python, llama_x86.c within one call. A step gets the nodes of a pass from `tree_frontier`, passes each node's
// logits to `tree_row`, calls `tree_taken`, draws with `tree_draw_row` and `tree_drawn` if that returned a number of
// draws, and repeats this until a frontier is empty; then it calls `tree_kept`. n = number of nodes so far, w = number
// of nodes in the current pass, k = number of ranks.

#pragma once

#include "text_index.h"

typedef struct {
    int64_t max_size, max_depth, beam, branch, most_read;
    int64_t sampled, draws;            // whether to use SampledExpansion instead of TopKExpansion; whether tokens are drawn
    int64_t vocab, threads;
    int64_t root_position;             // for this step
    int64_t bins;
    const double *centres, *values;    // [bins], [tables, bins]; `values` is NULL to use the draft's probabilities
    const double *mass_edges;          // [2]
    const double *expected;            // [branch]
    const double *step, *draft;        // [max_size + 1], [beam + 1]; NULL without costs
    double gain, threshold, least_gain;  // least_gain: gain required for one more child of this frontier, set when rows are read
    float inverse_temperature, padding;
    int64_t size, width, read;         // n, w, number of nodes that the draft has read in this step
    int64_t *parents, *ranks, *depths, *tokens, *cache_positions, *from_text;  // [2 max_size + beam * branch]
    double *probs, *scores;
    int64_t *frontier, *ids, *pass_positions;  // [beam]: the nodes of the pass, their tokens and their positions
    float *pass_mask, *mask, *rows;    // [beam * most_read], [most_read, most_read] over cache positions, [most_read, vocab]
    int64_t *best, *drawn;             // tokens: [beam, branch], [beam, 2 branch]
    double *best_probs, *drawn_probs, *planned;  // [beam, branch], drawn_probs [beam, 2 branch]
    int64_t *order, *other, *next, *scratch;  // [2 max_size + beam * branch] each
    int64_t *firsts, *counts;          // [max_size]: each node's first child (size for none) and number of children in the final tree
    float *sees;                       // [n, n], the final tree's mask: 0 where the row's node is the column's node or its descendant, else -inf
    double *sorted, *previous, *merged, *expected_falling;  // same shape
    Index *text, *store;               // the current text and the index of earlier text; NULL without look-ups
    Tree *looked_up;                   // buffers for look-ups, for 2 max_size + beam * branch nodes
    double *others;                    // [2 max_size + beam * branch]
    double least_score, max_total;     // see `dynamic_trees/running_lookup.py`
    double combined[3], draft_only[2];
    double *weights, *totals;          // [beam]: `sampled_expansion._DrawPlan.looked_up` and `.total` of each row
    int64_t draw_ranks;                // most drawn tokens that may become children of a node
    float *first_rows;                 // [most_read, vocab], filtered by top-k and top-p, for first drawn children; or NULL
    double top_p;
    int64_t top_k;
} TreeBuilder;

void tree_start(TreeBuilder *s);
int64_t tree_frontier(TreeBuilder *s);
int tree_row(TreeBuilder *s, int64_t row, const float *logits);
int64_t tree_taken(TreeBuilder *s);
int tree_draw_row(TreeBuilder *s, int64_t row, const double *uniforms, int64_t ranks);
void tree_drawn(TreeBuilder *s, int64_t ranks);
int64_t tree_kept(TreeBuilder *s);
