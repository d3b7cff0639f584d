/* Entries of an update that are kept or undone: the exchange in place, and the ranks that choose as many at random. */

#include "kernels.h"

#define AHEAD 8192 /* bytes between what is read and what is fetched */

/* One pair, and where its blocks begin among those of all pairs. */
typedef struct {
    int32_t *new, *old;
    Py_ssize_t entries, first;
} pair;

typedef struct {
    pair *pairs;
    Py_ssize_t count, block, blocks;
    const int32_t *ranks, *offsets;
} blocks;

/* Entries with |Δ| ≤ threshold and ranks from the block's cut on are reverted; without cuts, by magnitude alone. */
typedef struct {
    float threshold;
    const int32_t *cuts;
} rule;

typedef struct {
    const blocks *all;
    rule now, then;
} exchange;

INLINE ints reverted(floats size, ints rank, const rule *by, int32_t cut) {
    return (size <= by->threshold) & (rank >= cut);
}

/* `entries` are whole lanes; ranks are turned by the block's offset. */
static void exchange_block(const exchange *doing, int32_t *new, int32_t *old, Py_ssize_t entries, Py_ssize_t block) {
    const blocks *all = doing->all;
    int32_t length = (int32_t)all->block, offset = all->offsets[block];
    int32_t now = doing->now.cuts ? doing->now.cuts[block] : 0, then = doing->then.cuts ? doing->then.cuts[block] : 0;
    for (Py_ssize_t at = 0; at < entries; at += LANES) {
        FETCH(new + at, AHEAD, 1);
        FETCH(old + at, AHEAD, 1);
        UNROLLED(int half = 0; half < HALVES; half++) {
            ints *after = (ints *)(new + at + IN_HALF * half), *before = (ints *)(old + at + IN_HALF * half);
            ints rank = *(const ints *)(all->ranks + at + IN_HALF * half) + offset;
            rank -= (rank >= length) & length;
            floats size = (floats)((ints)((floats)*after - (floats)*before) & 0x7fffffff);
            ints chosen = reverted(size, rank, &doing->now, now) ^ reverted(size, rank, &doing->then, then);
            ints difference = (*after ^ *before) & chosen;
            *after ^= difference;
            *before ^= difference;
        }
    }
}

/* The pair that a block belongs to. */
static const pair *pair_of(const blocks *all, Py_ssize_t block) {
    Py_ssize_t low = 0, high = all->count;
    while (high - low > 1) {
        Py_ssize_t middle = (low + high) / 2;
        if (all->pairs[middle].first <= block) low = middle;
        else high = middle;
    }
    return &all->pairs[low];
}

/* Its entries: where they begin, and how many. */
static Py_ssize_t entries_in(const blocks *all, const pair *of, Py_ssize_t block, Py_ssize_t *from) {
    *from = (block - of->first) * all->block;
    return of->entries - *from < all->block ? of->entries - *from : all->block;
}

static void exchange_one(void *context, Py_ssize_t block) {
    const exchange *doing = context;
    const pair *of = pair_of(doing->all, block);
    Py_ssize_t from, entries = entries_in(doing->all, of, block, &from), whole = entries / LANES * LANES;
    int32_t *new = of->new + from, *old = of->old + from, ends[2][LANES] = {{0}};
    exchange_block(doing, new, old, whole, block);
    if (whole == entries) return;
    size_t rest = sizeof(int32_t) * (size_t)(entries - whole);
    blocks tail = *doing->all; /* the ranks of the last lanes; beyond the entries they choose among zeros */
    int32_t ranks[LANES] = {0};
    exchange ending = {&tail, doing->now, doing->then};
    memcpy(ranks, tail.ranks + whole, rest);
    memcpy(ends[0], new + whole, rest);
    memcpy(ends[1], old + whole, rest);
    tail.ranks = ranks;
    exchange_block(&ending, ends[0], ends[1], LANES, block);
    memcpy(new + whole, ends[0], rest);
    memcpy(old + whole, ends[1], rest);
}

typedef struct {
    const blocks *all;
    int64_t *changed;
} counting;

static void count_one(void *context, Py_ssize_t block) {
    const counting *doing = context;
    const pair *of = pair_of(doing->all, block);
    Py_ssize_t from, entries = entries_in(doing->all, of, block, &from);
    const int32_t *new = of->new + from, *old = of->old + from;
    int32_t total = 0;
    for (Py_ssize_t at = 0; at < entries; at++) total += new[at] != old[at];
    doing->changed[block] = total;
}

typedef struct {
    const blocks *all;
    const int64_t *kept;
    int32_t *cuts;
    Py_ssize_t number;
} cutting;

/* The rank after which `count` of the marked ranks have come. */
static int32_t cut_after(const uint8_t *marked, const int32_t *sums, Py_ssize_t groups, int64_t count) {
    if (count <= 0) return 0;
    Py_ssize_t group = 0;
    int64_t seen = 0;
    while (group < groups && seen + sums[group] < count) seen += sums[group++];
    Py_ssize_t rank = group * 64;
    for (; group < groups; rank++)
        if ((seen += marked[rank]) == count) break;
    return (int32_t)rank + 1;
}

#define MOST_BLOCK 32768

INLINE int all_differ(const int32_t *new, const int32_t *old) {
    ints same = {0};
    for (int half = 0; half < HALVES; half++)
        same |= *(const ints *)(new + IN_HALF * half) == *(const ints *)(old + IN_HALF * half);
    return !any(same);
}

static void cut_one(void *context, Py_ssize_t block) {
    const cutting *doing = context;
    const blocks *all = doing->all;
    const pair *of = pair_of(all, block);
    Py_ssize_t from, entries = entries_in(all, of, block, &from), groups = all->block / 64;
    const int32_t *new = of->new + from, *old = of->old + from;
    uint8_t marked[MOST_BLOCK];
    int32_t sums[MOST_BLOCK / 64], length = (int32_t)all->block, offset = all->offsets[block];
    memset(marked, 1, (size_t)all->block);
    for (Py_ssize_t at = 0; at < all->block; at += LANES) {
        /* after a step of an optimizer nearly all entries have changed: only the others are put in their places */
        if (at + LANES <= entries && all_differ(new + at, old + at)) continue;
        for (Py_ssize_t here = at; here < at + LANES; here++) {
            int32_t rank = all->ranks[here] + offset;
            marked[rank >= length ? rank - length : rank] = here < entries && new[here] != old[here];
        }
    }
    for (Py_ssize_t group = 0; group < groups; group++) {
        int32_t total = 0;
        for (int at = 0; at < 64; at++) total += marked[group * 64 + at];
        sums[group] = total;
    }
    for (Py_ssize_t which = 0; which < doing->number; which++)
        doing->cuts[which * all->blocks + block] =
            cut_after(marked, sums, groups, doing->kept[which * all->blocks + block]);
}

static void work_on(const blocks *all, job_function job, void *context, Py_ssize_t threads) {
    Py_BEGIN_ALLOW_THREADS
    in_parallel(all->blocks * all->block < ALONE ? 1 : (int)threads, all->blocks, job, context);
    Py_END_ALLOW_THREADS
}

/* What keeps the blocks of some pairs from being read, or NULL. */
static const char *fill(blocks *all, const Py_buffer *new, const Py_buffer *old, const Py_buffer *ranks,
                        const Py_buffer *offsets) {
    all->block = entries_of(ranks), all->blocks = 0;
    all->ranks = ranks->buf, all->offsets = offsets->buf;
    if (all->block % 64 || all->block < 64 || all->block > MOST_BLOCK) return "a block has a multiple of 64 ranks, at most 32768";
    for (Py_ssize_t index = 0; index < all->count; index++) {
        const Py_buffer *sides[2] = {&new[index], &old[index]};
        Py_ssize_t entries = entries_of(sides[0]);
        if (entries != entries_of(sides[1])) return "new and old have other numbers of entries";
        for (int side = 0; side < 2; side++)
            if (sides[side]->readonly || !PyBuffer_IsContiguous(sides[side], 'C')) return "an array has gaps or cannot be written";
        all->pairs[index] = (pair){sides[0]->buf, sides[1]->buf, entries, all->blocks};
        all->blocks += (entries + all->block - 1) / all->block;
    }
    if (entries_of(offsets) != all->blocks) return "every block needs an offset";
    for (Py_ssize_t at = 0; at < all->block; at++)
        if (all->ranks[at] < 0 || all->ranks[at] >= all->block) return "ranks lie within a block";
    for (Py_ssize_t block = 0; block < all->blocks; block++)
        if (all->offsets[block] < 0 || all->offsets[block] >= all->block) return "offsets lie within a block";
    return NULL;
}

/* Opens lists of new and old arrays with ranks and offsets, does the work, and lets go of them. */
typedef const char *(*task)(const blocks *all, const Py_buffer *views, Py_ssize_t threads);

static PyObject *with_blocks(const char *name, PyObject *const *args, Py_ssize_t given, int others,
                             const char *const *formats, task work) {
    if (given != others + 2) return PyErr_Format(PyExc_TypeError, "%s takes %d arguments, not %zd", name, others + 2, given);
    Py_ssize_t count = 0, same = 0;
    Py_buffer views[8], *new = get_arrays(args[0], &count, "f"), *old = new ? get_arrays(args[1], &same, "f") : NULL;
    const char *wrong = NULL;
    if (old && !get_all(name, args + 2, given - 2, others, formats, views)) {
        blocks all = {.pairs = PyMem_Malloc(sizeof(pair) * (size_t)(count + 1)), .count = count};
        wrong = !all.pairs ? "no memory" : count != same ? "as many new as old arrays are needed"
                                                         : fill(&all, new, old, &views[0], &views[1]);
        if (!wrong && all.blocks) wrong = work(&all, views + 2, views[others - 1].len);
        PyMem_Free(all.pairs);
        release_all(views, others);
    }
    if (new) release_arrays(new, count);
    if (old) release_arrays(old, same);
    if (wrong) PyErr_SetString(PyExc_ValueError, wrong);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static const char *do_exchange(const blocks *all, const Py_buffer *views, Py_ssize_t threads) {
    if (entries_of(&views[0]) != 2) return "two thresholds are needed";
    const double *thresholds = views[0].buf;
    exchange doing = {all, {(float)thresholds[0], NULL}, {(float)thresholds[1], NULL}};
    rule *rules[2] = {&doing.now, &doing.then};
    for (int which = 0; which < 2; which++) {
        if (!views[1 + which].obj) continue;
        if (entries_of(&views[1 + which]) != all->blocks) return "every block needs a cut";
        rules[which]->cuts = views[1 + which].buf;
    }
    work_on(all, exchange_one, &doing, threads);
    return NULL;
}

static const char *do_count(const blocks *all, const Py_buffer *views, Py_ssize_t threads) {
    if (entries_of(&views[0]) != all->blocks) return "out needs an entry for every block";
    counting doing = {all, views[0].buf};
    work_on(all, count_one, &doing, threads);
    return NULL;
}

static const char *do_cut(const blocks *all, const Py_buffer *views, Py_ssize_t threads) {
    cutting doing = {all, views[0].buf, views[1].buf, entries_of(&views[0]) / all->blocks};
    Py_ssize_t expected = doing.number * all->blocks;
    if (entries_of(&views[0]) != expected || entries_of(&views[1]) != expected) return "every block needs its numbers";
    work_on(all, cut_one, &doing, threads);
    return NULL;
}

/* exchange_entries(new, old, ranks, offsets, thresholds, now_cuts, then_cuts, threads) */
PyObject *exchange_entries(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    static const char *const formats[] = {"i", "i", "d", "*i", "*i", "#"};
    (void)module;
    return with_blocks("exchange_entries", args, given, 6, formats, do_exchange);
}

/* count_changed(new, old, ranks, offsets, out, threads) */
PyObject *count_changed(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    static const char *const formats[] = {"i", "i", "!lq", "#"};
    (void)module;
    return with_blocks("count_changed", args, given, 4, formats, do_count);
}

/* cut_changed(new, old, ranks, offsets, kept, out, threads) */
PyObject *cut_changed(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    static const char *const formats[] = {"i", "i", "lq", "!i", "#"};
    (void)module;
    return with_blocks("cut_changed", args, given, 5, formats, do_cut);
}
