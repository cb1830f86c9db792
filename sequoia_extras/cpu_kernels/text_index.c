// An index of the tokens that followed each context in earlier texts, and the tree of the most likely continuations.
// `plain_index.py` in dynamic_trees gives the same results, so change both; `index_memory.py` describes the arrays.
//
// Contexts of LEVELS lengths are chained by hash, newest first, in the ring of the last `capacity` tokens (as LZ77
// does). A token's number is the count of tokens added before it, modulo 2^32; its distance from the newest number
// shows whether the token is still in the ring. A chain may contain other contexts with the same hash and overwritten
// tokens, so tokens are always compared.

#include "text_index.h"

static const int64_t LENGTHS[LEVELS] = {12, 8, 6, 4, 3, 2, 1};

typedef struct {
    int64_t token, bin, level, place, source;
    double chance;
} Candidate;

static uint32_t mixed(uint32_t hash, int32_t token) {
    return (hash ^ (uint32_t)token) * 2654435761u ^ hash >> 15;
}

static int32_t token_at(const Index *index, uint32_t place) { return index->tokens[place & (index->capacity - 1)]; }

static uint32_t *entry(const Index *index, uint32_t *table, int64_t level, uint32_t at) {
    return table + level * index->capacity + (at & (index->capacity - 1));
}

// Find the last `length` tokens of a context in one text or store, newest first; return the number of occurrences.
static int occurrences(const Index *index, int level, const int32_t *end, uint32_t hash, uint32_t *places) {
    const int64_t length = LENGTHS[level];
    const uint32_t now = (uint32_t)index->total;
    uint32_t place = *entry(index, index->heads, level, hash);
    int found = 0;
    for (int step = 0; step < STEPS && found < OCCURRENCES; step++) {
        // Overwritten or empty. A partly overwritten context contains the end mark of a store's last text, which equals
        // no token.
        if ((uint32_t)(now - place) > index->capacity) break;
        int64_t same = 0;
        while (same < length && token_at(index, place - 1 - same) == end[-1 - same]) same++;
        if (same == length) places[found++] = place;
        const uint32_t back = *entry(index, index->earlier, level, place);
        if (!back) break;
        place -= back;
    }
    return found;
}

static int64_t count_bin(int64_t count) { return count < 3 ? count - 1 : count < 5 ? 2 : 3; }

static int64_t others_bin(int64_t others) { return others < 2 ? others : others < 4 ? 2 : others < 8 ? 3 : 4; }

// Collect the tokens that may follow a context, longest match first; return their number. Sources: this text and a
// store.
static int candidates(Index *const *sources, const int32_t *end, int64_t context, Candidate *found) {
    uint32_t hashes[LEVELS], places[OCCURRENCES], hash = 0;
    int many = 0;
    for (int64_t back = 1, level = LEVELS - 1; level >= 0 && back <= context; back++) {
        hash = mixed(hash, end[-back]);
        if (back == LENGTHS[level]) hashes[level--] = hash;
    }
    for (int level = 0; level < LEVELS && many < MOST; level++) {
        if (LENGTHS[level] > context) continue;
        int64_t tokens[2 * OCCURRENCES], counts[2 * OCCURRENCES], source_of[2 * OCCURRENCES], place_of[2 * OCCURRENCES];
        int kinds = 0, total = 0;
        for (int source = 0; source < 2; source++) {
            if (!sources[source]) continue;
            const int count = occurrences(sources[source], level, end, hashes[level], places);
            for (int i = 0; i < count; i++, total++) {
                const int32_t token = token_at(sources[source], places[i]);
                int kind = 0;
                while (kind < kinds && tokens[kind] != token) kind++;
                if (kind == kinds)
                    tokens[kind] = token, counts[kind] = 0, source_of[kind] = source, place_of[kind] = places[i], kinds++;
                counts[kind]++;
            }
        }
        const int before = many;
        for (int kind = 0; kind < kinds && many < MOST; kind++) {
            int known = 0;
            for (int i = 0; i < before && !known; i++) known = found[i].token == tokens[kind];
            if (known) continue;
            const int64_t bin = (((source_of[kind] * LEVELS + level) * 4 + count_bin(counts[kind])) * 5 +
                                 others_bin(total - counts[kind])) * 2 + (kind == 0);
            found[many++] = (Candidate){tokens[kind], bin, level, place_of[kind], source_of[kind], 0.0};
        }
    }
    return many;
}

// Compute each candidate's probability from this text's tables; shorter matches share the mass that longer ones leave.
static void weigh(const Index *own, Candidate *found, int many) {
    double left = 1.0;
    for (int i = 0; i < many;) {
        double sum = 0.0;
        int next = i;
        for (; next < many && found[next].level == found[i].level; next++) {
            found[next].chance = left * (own->hits[found[next].bin] / own->trials[found[next].bin]);
            sum += found[next].chance;
        }
        left = left > sum ? left - sum : 0.0;
        i = next;
    }
}

// Update the tables with the token that followed; shorter matches count only if all longer ones failed.
static void learn(Index *own, const Candidate *found, int many, int32_t token) {
    int hit = 0;
    for (int i = 0; i < many && !(hit && found[i].level != found[i - 1].level); i++) {
        const int64_t bin = found[i].bin;
        own->trials[bin] += 1.0;
        if (found[i].token == token) own->hits[bin] += 1.0, hit = 1;
        if (own->trials[bin] > 512.0) own->trials[bin] *= 0.5, own->hits[bin] *= 0.5;
    }
}

static void push(Index *index, int32_t token) {
    const uint32_t place = (uint32_t)index->total;
    uint32_t hash = 0;
    for (int64_t back = 1, level = LEVELS - 1; level >= 0 && back <= index->text_length; back++) {
        hash = mixed(hash, token_at(index, place - back));
        if (back != LENGTHS[level]) continue;
        uint32_t *head = entry(index, index->heads, level, hash);
        const uint32_t distance = place - *head;
        *entry(index, index->earlier, level, place) = distance < index->capacity ? distance : 0;
        *head = place;
        level--;
    }
    index->tokens[place & (index->capacity - 1)] = token;
    index->total++, index->text_length++;
}

// Add tokens to the current text; if it learns, update its tables, also by candidates from another store.
void index_extend(Index *own, Index *store, const int32_t *tokens, int64_t count) {
    Index *sources[2] = {own, store};
    Candidate found[MOST];
    int32_t context[LONGEST];
    for (int64_t i = 0; i < count; i++) {
        const int64_t length = own->text_length < own->max_context ? own->text_length : own->max_context;
        if (own->learns && length) {
            for (int64_t back = 1; back <= length; back++) 
                context[LONGEST - back] = token_at(own, (uint32_t)own->total - back);
            learn(own, found, candidates(sources, context + LONGEST, length, found), tokens[i]);
        }
        push(own, tokens[i]);
    }
}

// Mark the end of a text, so that no context spans two texts.
void index_end(Index *index) {
    index->tokens[index->total & (index->capacity - 1)] = -1;
    index->total++, index->text_length = 0;
}

static int before(const Tree *tree, int64_t a, int64_t b) {  // breaks ties by order of insertion
    return tree->keys[a] > tree->keys[b] || (tree->keys[a] == tree->keys[b] && a < b);
}

static void sift_up(Tree *tree, int64_t at) {
    for (int64_t up = (at - 1) / 2; at && before(tree, tree->heap[at], tree->heap[up]); at = up, up = (at - 1) / 2) {
        const int64_t swap = tree->heap[at];
        tree->heap[at] = tree->heap[up], tree->heap[up] = swap;
    }
}

static void sift_down(Tree *tree, int64_t size) {
    for (int64_t at = 0;;) {
        int64_t best = at;
        for (int64_t child = 2 * at + 1; child < size && child <= 2 * at + 2; child++)
            if (before(tree, tree->heap[child], tree->heap[best])) best = child;
        if (best == at) return;
        const int64_t swap = tree->heap[at];
        tree->heap[at] = tree->heap[best], tree->heap[best] = swap;
        at = best;
    }
}

// Grow the tree of the most likely continuations of the current text; return its size, including the root. A tree of
// `size` nodes is continued below node `fresh` and all later nodes; a `size` of 0 starts a new tree from the root.
int64_t index_grow(Index *own, Index *store, Tree *tree, int64_t size, int64_t fresh) {
    Index *sources[2] = {own, store};
    Candidate found[MOST];
    int32_t context[LONGEST] = {0};
    int64_t waiting = 0, heap = 0, best;
    if (!size) {
        tree->parents[0] = -1, tree->ranks[0] = tree->depths[0] = 0;
        tree->tokens[0] = token_at(own, (uint32_t)own->total - 1);
        tree->probs[0] = tree->scores[0] = 1.0;
        tree->places[0] = tree->sources[0] = -1, tree->lengths[0] = 0;
        size = 1;
    }
    for (int64_t node = 0; node < size; node++) tree->children[node] = 0;
    for (int64_t node = 1; node < size; node++) tree->children[tree->parents[node]]++;
    for (int64_t node = fresh;;) {
        for (; node < size; node++) {
            if (tree->depths[node] == tree->max_depth) continue;
            int64_t length = 0;
            for (int64_t at = node; at && length < own->max_context; at = tree->parents[at])
                context[LONGEST - ++length] = (int32_t)tree->tokens[at];
            for (int64_t back = 1; length < own->max_context && back <= own->text_length; back++)
                context[LONGEST - ++length] = token_at(own, (uint32_t)own->total - back);
            const int many = candidates(sources, context + LONGEST, length, found);
            weigh(own, found, many);
            for (int i = 0; i < many; i++) {
                const double chance = tree->gain * found[i].chance, score = tree->scores[node] * chance;
                if (score < tree->least) continue;
                const int64_t facts[6] = {node, found[i].token, found[i].place, found[i].source, LENGTHS[found[i].level], 0};
                for (int fact = 0; fact < 6; fact++) tree->waiting[6 * waiting + fact] = facts[fact];
                tree->keys[waiting] = score, tree->chances[waiting] = chance, tree->heap[heap] = waiting++;
                sift_up(tree, heap++);
            }
        }
        do {
            if (!heap || size == tree->max_size) return size;
            best = tree->heap[0];
            tree->heap[0] = tree->heap[--heap];
            sift_down(tree, heap);
        } while (tree->children[tree->waiting[6 * best]] == tree->max_children);
        const int64_t *facts = tree->waiting + 6 * best, parent = facts[0];
        tree->parents[size] = parent, tree->ranks[size] = ++tree->children[parent];
        tree->depths[size] = tree->depths[parent] + 1, tree->tokens[size] = facts[1], tree->children[size] = 0;
        tree->probs[size] = tree->chances[best], tree->scores[size] = tree->keys[best];
        tree->places[size] = facts[2], tree->sources[size] = facts[3], tree->lengths[size++] = facts[4];
    }
}
