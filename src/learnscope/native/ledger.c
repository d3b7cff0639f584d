/* The ledger of examples: looking ids up, and what one more presentation changes in their rows.

The rows of millions of examples are in no cache, and each is somewhere else: they are asked for some time before they
are read, many at once. */

#include <math.h>

#include "kernels.h"

#define AHEAD 16 /* rows between asking for one and changing it, where they were read a little before */
#define FURTHER 32 /* and where they may have to come from memory */
#define LATER 64
#define MOST_VOTES 255

/* As in learnscope/ledger/columns.py. */
typedef struct {
    int64_t id, target;
    double checksum, confidence, confidence_m2, aum, el2n_mean, el2n_last, cumulative_loss;
    int32_t presentations, nonfinite, times_correct, forgetting_events, first_correct, first_learned, last_correct,
        first_epoch, last_epoch, learned_epoch;
} row;

INLINE void ask_for(const row *wanted) {
    __builtin_prefetch((const char *)wanted, 1);
    __builtin_prefetch((const char *)wanted + 64, 1);
    __builtin_prefetch((const char *)wanted + sizeof(row) - 1, 1);
}

/* Where rows are: by id, or in the slot of the id's hash and those that follow it; row + 1, 0 for none. */
typedef struct {
    const int32_t *slots;
    Py_ssize_t count;
    int hashed, shift;
    const row *rows;
    Py_ssize_t size;
} table;

INLINE Py_ssize_t first_slot(const table *index, int64_t id) {
    if (!index->hashed) return id >= 0 && id < index->count ? (Py_ssize_t)id : -1;
    uint64_t mixed = (uint64_t)id * 0x9E3779B97F4A7C15u;
    return (Py_ssize_t)((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9u >> index->shift);
}

/* The row in a slot, asked for; −1 for none. */
INLINE int64_t in_slot(const table *index, Py_ssize_t slot) {
    int32_t found = slot < 0 ? 0 : index->slots[slot];
    if (found <= 0 || found > index->size) return -1;
    ask_for(&index->rows[found - 1]);
    return found - 1;
}

/* Ids whose slot another id has, so that the next slot is looked at; each waits until its row is there. */
typedef struct {
    Py_ssize_t which[LATER], slot[LATER], since[LATER], first, count;
} queue;

typedef struct {
    table index;
    const int64_t *ids, *targets;
    const double *checksums;
    int64_t *at;
    int same; /* whether all so far are known, with these targets and checksums */
    queue later;
} search;

/* Looks at the row that an id was asked for, and goes on to the next slot if it is another id's. */
INLINE void compare(search *asked, Py_ssize_t which, Py_ssize_t slot, Py_ssize_t now) {
    const table *index = &asked->index;
    for (;;) {
        int64_t found = asked->at[which];
        const row *known = &index->rows[found];
        if (found < 0) {
            asked->same = 0;
            return;
        }
        if (known->id == asked->ids[which]) {
            if (asked->targets) asked->same &= known->target == asked->targets[which];
            if (asked->checksums) asked->same &= known->checksum == asked->checksums[which];
            return;
        }
        if (!index->hashed) {
            asked->at[which] = -1;
            continue;
        }
        slot = (slot + 1) & (index->count - 1);
        asked->at[which] = in_slot(index, slot);
        queue *later = &asked->later;
        if (later->count == LATER) continue; /* no room: wait for this one here */
        Py_ssize_t place = (later->first + later->count++) % LATER;
        later->which[place] = which, later->slot[place] = slot, later->since[place] = now;
        return;
    }
}

/* Goes on with the ids that wait since `until` or longer. */
INLINE void look_further(search *asked, Py_ssize_t until, Py_ssize_t now) {
    queue *later = &asked->later;
    while (later->count && later->since[later->first] <= until) {
        Py_ssize_t place = later->first;
        later->first = (later->first + 1) % LATER, later->count--;
        compare(asked, later->which[place], later->slot[place], now);
    }
}

/* Rows of all ids, −1 for an unknown one. Of every id first the slot is asked for, some ids later the row in it, and
   again some later the row is looked at. */
static int find_all(search *asked, Py_ssize_t count) {
    Py_ssize_t slots[2 * FURTHER + 1];
    for (Py_ssize_t now = 0; now < count + 2 * FURTHER; now++) {
        Py_ssize_t turn = now % (2 * FURTHER + 1), second = now - FURTHER, third = now - 2 * FURTHER;
        Py_ssize_t slot = slots[(turn + 1) % (2 * FURTHER + 1)];
        if (third >= 0) compare(asked, third, slot, now);
        if (now < count) {
            slots[turn] = first_slot(&asked->index, asked->ids[now]);
            if (slots[turn] >= 0) __builtin_prefetch(&asked->index.slots[slots[turn]]);
        }
        if (second >= 0 && second < count)
            asked->at[second] = in_slot(&asked->index, slots[(turn + FURTHER + 1) % (2 * FURTHER + 1)]);
        look_further(asked, now - FURTHER, now);
    }
    while (asked->later.count) look_further(asked, PY_SSIZE_T_MAX, 0);
    return asked->same;
}

/* ledger_find(slots, hashed, rows, size, ids, targets or None, checksums or None, at) */
PyObject *ledger_find(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    static const char *const formats[] = {"i", "#", "V", "#", "lq", "*lq", "*d", "!lq"};
    Py_buffer views[8];
    if (get_all("ledger_find", args, given, 8, formats, views)) return NULL;
    Py_ssize_t count = entries_of(&views[4]);
    const int64_t *ids = views[4].buf, *targets = views[5].buf;
    const double *checksums = views[6].buf;
    int64_t *at = views[7].buf;
    search asked = {{views[0].buf, entries_of(&views[0]), views[1].len != 0, 0, views[2].buf, views[3].len},
                    ids, targets, checksums, at, 1, {.count = 0}};
    table index = asked.index;
    int fits = views[2].itemsize == sizeof(row) && index.size >= 0 && index.size <= entries_of(&views[2]) &&
               (!targets || entries_of(&views[5]) == count) && (!checksums || entries_of(&views[6]) == count) &&
               entries_of(&views[7]) == count;
    if (index.hashed) {
        fits = fits && index.count > 1 && !(index.count & (index.count - 1)) && index.size < index.count;
        if (fits) asked.index.shift = 64 - __builtin_ctzll((unsigned long long)index.count);
    }
    int same = fits && find_all(&asked, count);
    release_all(views, 8);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the index, the rows and %zd ids do not fit together", count);
    return PyBool_FromLong(same);
}

/* One presentation after another: an example that comes twice is as it was after the first when the second comes. */
typedef struct {
    row *rows;
    const int64_t *at, *targets, *predicted;
    const double *p_gold, *margin, *loss, *el2n, *checksums;
    const char *correct;
    int16_t *classes;
    uint8_t *votes;
    int32_t epoch;
    int once;
} presented;

/* Boyer and Moore's vote, as said in learnscope/ledger/presentation.py. */
INLINE void vote(int16_t *kept, uint8_t *votes, int64_t predicted) {
    if (predicted < 0 || predicted > INT16_MAX) return;
    if (*votes == 0 || *kept == predicted) {
        *kept = (int16_t)predicted;
        *votes += *votes < MOST_VOTES;
    } else {
        --*votes;
    }
}

INLINE void learn(row *known, int correct, int32_t epoch) {
    known->times_correct += correct;
    known->last_epoch = epoch;
    if (!correct) { /* learned means correct from then on: a wrong answer resets it, and forgets */
        known->forgetting_events += known->first_learned > 0;
        known->first_learned = 0;
        return;
    }
    known->last_correct = known->presentations;
    if (known->first_learned > 0) return;
    known->first_learned = known->presentations;
    known->learned_epoch = epoch;
    if (!known->first_correct) known->first_correct = known->presentations;
}

INLINE void add_scores(row *known, double p, double margin, double loss, double el2n) {
    double count = known->presentations - known->nonfinite, deviation = p - known->confidence;
    known->confidence += deviation / count;
    known->confidence_m2 += deviation * (p - known->confidence); /* Welford: no difference of large sums */
    known->aum += (margin - known->aum) / count;
    known->el2n_mean += (el2n - known->el2n_mean) / count;
    known->el2n_last = el2n;
    known->cumulative_loss += loss;
}

static Py_ssize_t present(const presented *batch, Py_ssize_t count) {
    Py_ssize_t repeated = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i + AHEAD < count) ask_for(&batch->rows[batch->at[i + AHEAD]]);
        int64_t at = batch->at[i];
        row *known = &batch->rows[at];
        if (batch->once && known->presentations > 0 && known->last_epoch == batch->epoch) {
            repeated++;
            continue;
        }
        if (batch->predicted) vote(&batch->classes[at], &batch->votes[at], batch->predicted[i]);
        if (batch->targets) known->target = batch->targets[i];
        if (batch->checksums) known->checksum = batch->checksums[i];
        known->presentations++;
        learn(known, batch->correct[i] != 0, batch->epoch);
        if (isfinite(batch->p_gold[i]) && isfinite(batch->margin[i]) && isfinite(batch->loss[i]) &&
            isfinite(batch->el2n[i]))
            add_scores(known, batch->p_gold[i], batch->margin[i], batch->loss[i], batch->el2n[i]);
        else
            known->nonfinite++;
    }
    return repeated;
}

/* ledger_present(rows, at, p_gold, margin, loss, el2n, correct, targets, checksums, predicted, classes, votes, epoch,
   once): the four after `correct` may be None, and what is None stays as it is. */
PyObject *ledger_present(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    static const char *const formats[] = {"!V", "lq", "d", "d",   "d",   "d",   "?",
                                          "*lq", "*d", "*lq", "!*h", "!*B", "#", "#"};
    Py_buffer views[14];
    if (get_all("ledger_present", args, given, 14, formats, views)) return NULL;
    Py_ssize_t count = entries_of(&views[1]), size = entries_of(&views[0]);
    presented batch = {.rows = views[0].buf, .at = views[1].buf, .targets = views[7].buf, .predicted = views[9].buf,
                       .p_gold = views[2].buf, .margin = views[3].buf, .loss = views[4].buf, .el2n = views[5].buf,
                       .checksums = views[8].buf, .correct = views[6].buf, .classes = views[10].buf,
                       .votes = views[11].buf, .epoch = (int32_t)views[12].len, .once = views[13].len != 0};
    int fits = views[0].itemsize == sizeof(row) && views[12].len >= 0 && views[12].len <= INT32_MAX;
    for (int i = 2; i < 10; i++) fits = fits && (!views[i].buf || entries_of(&views[i]) == count);
    if (batch.predicted)
        fits = fits && batch.classes && batch.votes && entries_of(&views[10]) >= size && entries_of(&views[11]) >= size;
    for (Py_ssize_t i = 0; fits && i < count; i++) fits = batch.at[i] >= 0 && batch.at[i] < size;
    Py_ssize_t repeated = fits ? present(&batch, count) : 0;
    release_all(views, 14);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the rows and %zd presentations do not fit together", count);
    return PyLong_FromSsize_t(repeated);
}

/* ledger_totals(rows, size, counts, scores): the sums of presentations, of those that were not finite and of forgetting
   events, and how many rows have been learned, were ever right and ever forgotten; beside them, of each row with finite
   scores, confidence, its standard deviation, AUM, EL2N and cumulative loss. Returns how many these are. */
PyObject *ledger_totals(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    static const char *const formats[] = {"V", "#", "!lq", "!d"};
    Py_buffer views[4];
    if (get_all("ledger_totals", args, given, 4, formats, views)) return NULL;
    const row *rows = views[0].buf;
    Py_ssize_t size = views[1].len, measured = 0;
    int64_t *counts = views[2].buf;
    double *scores = views[3].buf;
    int fits = views[0].itemsize == sizeof(row) && size >= 0 && size <= entries_of(&views[0]) &&
               entries_of(&views[2]) == 6 && entries_of(&views[3]) == 5 * size;
    if (fits) memset(counts, 0, 6 * sizeof *counts);
    for (Py_ssize_t at = 0; fits && at < size; at++) {
        const row *known = &rows[at];
        int32_t count = known->presentations - known->nonfinite;
        counts[0] += known->presentations, counts[1] += known->nonfinite, counts[2] += known->forgetting_events;
        counts[3] += known->first_learned != 0, counts[4] += known->first_correct != 0;
        counts[5] += known->forgetting_events != 0;
        if (count <= 0) continue;
        double *score = scores + measured++;
        score[0] = known->confidence, score[size] = sqrt(known->confidence_m2 / count), score[2 * size] = known->aum;
        score[3 * size] = known->el2n_mean, score[4 * size] = known->cumulative_loss;
    }
    release_all(views, 4);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the rows and what is written do not fit together");
    return PyLong_FromSsize_t(measured);
}
