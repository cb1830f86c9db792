// A text index and the trees grown from it; index_memory.py in dynamic_trees describes the arrays.

#pragma once

#include <stdint.h>

enum { LEVELS = 7, LONGEST = 12, OCCURRENCES = 16, STEPS = 48, MOST = 24 };

typedef struct {
    int64_t capacity, max_context, total, text_length, learns;  // capacity: a power of two
    int32_t *tokens;            // [capacity]; -1 between texts
    uint32_t *heads, *earlier;  // [LEVELS, capacity]: newest token by hash; distance to its predecessor in the chain, 0 for none
    double *hits, *trials;      // [prod(BIN_SHAPE)]
} Index;

typedef struct {
    int64_t max_size, max_depth, max_children;
    double least, gain;                             // minimum score of a node; factor for probabilities
    int64_t *parents, *ranks, *depths, *tokens;     // [max_size]
    double *probs, *scores;
    int64_t *places, *sources, *lengths;            // [max_size]: a node's token number, source (store or text) and match length
    double *keys;                                   // [max_size * MOST]: the heap, largest score first
    int64_t *heap, *waiting;                        // [max_size * MOST] and [max_size * MOST, 6]
    double *chances;                                // [max_size * MOST]
    int64_t *children;                              // [max_size]
} Tree;

int64_t index_grow(Index *own, Index *store, Tree *tree, int64_t size, int64_t fresh);
