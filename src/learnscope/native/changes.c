/* Statistics of the change between two copies of weights, in one pass over both. */

#include <math.h>

#include "kernels.h"

#define BLOCK 512 /* entries that are added up in float32: at most 32 additions in a lane, off by 5e-7 of the sum */
#define STRETCH 4096 /* entries whose sizes a core's nearest cache holds while they are compared with the cuts */
#define AHEAD 8192 /* bytes between what is read and what is fetched */
#define MOST_CUTS 32
#define LOST_DIGITS 0.9 /* the share of Σd² that the mean may explain; above it Σd² − (Σd)²/n loses digits */
#define SMALLEST_SAFE 0x1p-93 /* a float32 sum of squares below this may have lost terms to underflow */

enum { TOTAL, SIZES, SQUARES, CENTRED, LARGEST, OLD_SQUARES, FLIPS, BITS, NANS, INFINITE, COLUMNS };

typedef struct {
    double column[COLUMNS + MOST_CUTS];
    double entries;
} sums;

/* Some entries of one pair. */
typedef struct {
    const float *new;
    float *old;
    Py_ssize_t owner, entries;
    sums found;
} piece;

typedef struct {
    piece *pieces;
    float cuts[MOST_CUTS];
    int number_of_cuts, renew;
} task;

/* What a stretch has given so far, lane by lane. */
typedef struct {
    doubles total[QUARTERS], sizes[QUARTERS], squares[QUARTERS], before[QUARTERS];
    floats largest[HALVES];
    ints flips[HALVES], same[HALVES], any_old[HALVES];
} lanes;

INLINE ints size_bits(floats x) { return (ints)x & 0x7fffffff; }

INLINE void widen_into(doubles *into, const floats *from) {
    float values[LANES];
    memcpy(values, from, sizeof values);
    for (int part = 0; part < QUARTERS; part++) into[part] += widened(values + IN_QUARTER * part);
}

/* Whole lanes of at most BLOCK entries; leaves their sizes |new − old|. */
static void read_block(const float *new, const float *old, float *sizes_out, Py_ssize_t entries, lanes *into) {
    lanes now = *into; /* so that these stay in registers */
    floats total[HALVES] = {0}, sizes[HALVES] = {0}, squares[HALVES] = {0}, was[HALVES] = {0};
    for (Py_ssize_t at = 0; at < entries; at += LANES) {
        UNROLLED(int half = 0; half < HALVES; half++) {
            Py_ssize_t here = at + IN_HALF * half;
            /* memory must not wait while sizes are compared with the cuts; beyond the end nothing is fetched */
            FETCH(new + here, AHEAD, 0);
            FETCH(old + here, AHEAD, 0);
            floats after = *(const floats *)(new + here), before = *(const floats *)(old + here);
            floats moved = after - before, size = (floats)size_bits(moved);
            *(floats *)(sizes_out + here) = size;
            now.largest[half] = larger(size, now.largest[half]);
            now.same[half] += (ints)after == (ints)before;
            now.any_old[half] |= size_bits(before);
            /* ∞·new keeps only the sign of new (NaN for a zero), so that the product cannot underflow */
            now.flips[half] += after * INFINITY * before < 0.0f;
            total[half] += moved;
            sizes[half] += size;
            squares[half] += moved * moved;
            was[half] += before * before;
        }
    }
    widen_into(now.total, total);
    widen_into(now.sizes, sizes);
    widen_into(now.squares, squares);
    widen_into(now.before, was);
    *into = now;
}

INLINE double counted(const ints *masks) {
    const int32_t *each = (const int32_t *)masks;
    double total = 0;
    for (int lane = 0; lane < LANES; lane++) total -= each[lane];
    return total;
}

/* How many of these sizes, whole lanes, are within the cut. */
static double within(const float *sizes, Py_ssize_t entries, float cut) {
    ints inside[HALVES] = {0};
    for (Py_ssize_t at = 0; at < entries; at += LANES)
        UNROLLED(int half = 0; half < HALVES; half++)
            inside[half] += *(const floats *)(sizes + at + IN_HALF * half) <= cut;
    return counted(inside);
}

/* The sums in float64, for what float32 may not hold, and what is NaN or infinite. */
static void read_exactly(const float *new, const float *old, Py_ssize_t entries, double *column) {
    double total[LANES] = {0}, sizes[LANES] = {0}, squares[LANES] = {0}, before[LANES] = {0};
    for (Py_ssize_t at = 0; at < entries; at++) {
        double moved = new[at] - old[at], was = old[at];
        column[NANS] += isnan(moved) != 0;
        column[INFINITE] += isinf(moved) != 0;
        total[at % LANES] += moved;
        sizes[at % LANES] += fabs(moved);
        squares[at % LANES] += moved * moved;
        before[at % LANES] += was * was;
    }
    column[TOTAL] = sum_of(total), column[SIZES] = sum_of(sizes);
    column[SQUARES] = sum_of(squares), column[OLD_SQUARES] = sum_of(before);
}

/* Σ(d − mean)², from the sums where these have the digits for it. */
static double centred(const float *new, const float *old, Py_ssize_t entries, const double *column) {
    double mean = column[TOTAL] / (double)entries, explained = column[TOTAL] * mean, squares[LANES] = {0};
    if (!(explained > LOST_DIGITS * column[SQUARES])) return column[SQUARES] - explained;
    double first = 0;
    for (Py_ssize_t at = 0; at < entries; at++) first += new[at] - old[at];
    mean = first / (double)entries; /* the one above may be of float32 sums */
    for (Py_ssize_t at = 0; at < entries; at++) {
        double apart = (double)(new[at] - old[at]) - mean;
        squares[at % LANES] += apart * apart;
    }
    return sum_of(squares);
}

static void read_stretch(const task *all, const float *new, const float *old, Py_ssize_t entries, sums *found) {
    _Alignas(64) float sizes[STRETCH + LANES], ends[2][LANES] = {0};
    Py_ssize_t whole = entries / LANES * LANES, read = whole;
    double *column = found->column;
    lanes each;
    memset(&each, 0, sizeof each);
    for (Py_ssize_t from = 0; from < whole; from += BLOCK)
        read_block(new + from, old + from, sizes + from, whole - from < BLOCK ? whole - from : BLOCK, &each);
    if (whole != entries) { /* the rest is filled up with zeros, which add nothing to any sum */
        memcpy(ends[0], new + whole, sizeof(float) * (size_t)(entries - whole));
        memcpy(ends[1], old + whole, sizeof(float) * (size_t)(entries - whole));
        read_block(ends[0], ends[1], sizes + whole, LANES, &each);
        read += LANES;
    }
    memset(found, 0, sizeof *found);
    found->entries = (double)entries;
    column[TOTAL] = sum_of((const double *)each.total), column[SIZES] = sum_of((const double *)each.sizes);
    column[SQUARES] = sum_of((const double *)each.squares), column[OLD_SQUARES] = sum_of((const double *)each.before);
    column[FLIPS] = counted(each.flips), column[BITS] = (double)read - counted(each.same);
    int32_t any_old = 0;
    for (int lane = 0; lane < LANES; lane++) {
        float size = ((const float *)each.largest)[lane];
        if (size > column[LARGEST]) column[LARGEST] = size;
        any_old |= ((const int32_t *)each.any_old)[lane];
    }
    int lost = (column[LARGEST] > 0 && column[SQUARES] < SMALLEST_SAFE) || (any_old && column[OLD_SQUARES] < SMALLEST_SAFE);
    if (lost || !isfinite(column[SIZES] + column[SQUARES] + column[OLD_SQUARES])) read_exactly(new, old, entries, column);
    column[CENTRED] = centred(new, old, entries, column);
    for (int which = 0; which < all->number_of_cuts; which++) {
        float cut = all->cuts[which];
        /* most steps move all weights by less than the widest cut */
        int everything = cut >= column[LARGEST] && column[NANS] == 0;
        double padding = cut >= 0 ? (double)(read - entries) : 0;
        column[COLUMNS + which] = (everything ? (double)read : within(sizes, read, cut)) - padding;
    }
}

/* Adds the sums of one part to those of another (Chan, Golub & LeVeque 1979 for the centred squares). */
static void merge(sums *into, const sums *part, int number_of_cuts) {
    double *a = into->column;
    const double *b = part->column;
    double apart = into->entries ? b[TOTAL] / part->entries - a[TOTAL] / into->entries : 0;
    double both = into->entries + part->entries;
    double moved = apart * apart * (into->entries * part->entries / both);
    double largest = b[LARGEST] > a[LARGEST] ? b[LARGEST] : a[LARGEST];
    for (int column = 0; column < COLUMNS + number_of_cuts; column++) a[column] += b[column];
    a[CENTRED] += moved;
    a[LARGEST] = largest;
    into->entries = both;
}

static void read_piece(void *context, Py_ssize_t job) {
    task *all = context;
    piece *part = &all->pieces[job];
    memset(&part->found, 0, sizeof part->found);
    for (Py_ssize_t from = 0; from < part->entries; from += STRETCH) {
        Py_ssize_t entries = part->entries - from < STRETCH ? part->entries - from : STRETCH;
        sums stretch;
        read_stretch(all, part->new + from, part->old + from, entries, &stretch);
        merge(&part->found, &stretch, all->number_of_cuts);
        if (all->renew) memcpy(part->old + from, part->new + from, sizeof(float) * (size_t)entries);
    }
}

/* What the pair of arrays has in common, or an exception. */
static int check_pair(const Py_buffer *new, const Py_buffer *old, int renew) {
    const char *wrong = NULL;
    if (entries_of(new) != entries_of(old)) wrong = "new and old have other numbers of entries";
    if (!PyBuffer_IsContiguous(new, 'C') || !PyBuffer_IsContiguous(old, 'C')) wrong = "an array has gaps or another order";
    if (renew && old->readonly) wrong = "an old array cannot be written";
    if (wrong) PyErr_SetString(PyExc_ValueError, wrong);
    return wrong ? -1 : 0;
}

static piece *pieces_of(const Py_buffer *new, const Py_buffer *old, Py_ssize_t count, Py_ssize_t *pieces) {
    *pieces = 0;
    for (Py_ssize_t index = 0; index < count; index++) *pieces += (entries_of(&new[index]) + PIECE - 1) / PIECE;
    piece *all = PyMem_Malloc(sizeof(piece) * (size_t)(*pieces ? *pieces : 1)), *next = all;
    if (!all) return (piece *)PyErr_NoMemory();
    for (Py_ssize_t index = 0; index < count; index++) {
        const float *after = new[index].buf;
        float *before = old[index].buf;
        for (Py_ssize_t from = 0, entries = entries_of(&new[index]); from < entries; from += PIECE, next++) {
            next->new = after + from, next->old = before + from, next->owner = index;
            next->entries = entries - from < PIECE ? entries - from : PIECE;
        }
    }
    return all;
}

static void read_all(task *all, Py_ssize_t pieces, int threads) {
    Py_ssize_t total = 0;
    for (Py_ssize_t at = 0; at < pieces; at++) total += all->pieces[at].entries;
    if (total < ALONE) {
        in_parallel(1, pieces, read_piece, all);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    in_parallel(threads, pieces, read_piece, all);
    Py_END_ALLOW_THREADS
}

/* Into rows of one column for each pair; a maximum and a spread mean nothing if a change is not a number. */
static void write_out(const task *all, Py_ssize_t pieces, double *out, Py_ssize_t width) {
    sums whole;
    for (Py_ssize_t at = 0; at < pieces;) {
        Py_ssize_t owner = all->pieces[at].owner;
        memset(&whole, 0, sizeof whole);
        for (; at < pieces && all->pieces[at].owner == owner; at++)
            merge(&whole, &all->pieces[at].found, all->number_of_cuts);
        if (whole.column[NANS] > 0) whole.column[LARGEST] = NAN;
        if (whole.column[NANS] + whole.column[INFINITE] > 0) whole.column[CENTRED] = NAN;
        for (int row = 0; row < COLUMNS + all->number_of_cuts; row++) out[row * width + owner] = whole.column[row];
    }
}

/* The cuts as float32, which they have to be already; -1 with an exception if there are too many. */
static int get_cuts(const Py_buffer *given, task *all) {
    if (entries_of(given) > MOST_CUTS) {
        PyErr_Format(PyExc_ValueError, "%zd cuts: at most %d", entries_of(given), MOST_CUTS);
        return -1;
    }
    all->number_of_cuts = (int)entries_of(given);
    for (int which = 0; which < all->number_of_cuts; which++) all->cuts[which] = (float)((double *)given->buf)[which];
    return 0;
}

static int compare(const Py_buffer *new, const Py_buffer *old, Py_ssize_t count, Py_buffer *out, task *all, int threads) {
    for (Py_ssize_t index = 0; index < count; index++)
        if (check_pair(&new[index], &old[index], all->renew)) return -1;
    if (entries_of(out) != (COLUMNS + all->number_of_cuts) * count) {
        PyErr_SetString(PyExc_ValueError, "out has no room for a row of each number");
        return -1;
    }
    Py_ssize_t pieces;
    all->pieces = pieces_of(new, old, count, &pieces);
    if (!all->pieces) return -1;
    read_all(all, pieces, threads);
    memset(out->buf, 0, (size_t)out->len);
    write_out(all, pieces, out->buf, count);
    PyMem_Free(all->pieces);
    return 0;
}

/* change_sums(new, old, cuts, out, threads, renew) */
PyObject *change_sums(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 6) return PyErr_Format(PyExc_TypeError, "change_sums takes 6 arguments, not %zd", given);
    task all = {0};
    int threads = (int)PyLong_AsLong(args[4]), failed = 1;
    all.renew = PyObject_IsTrue(args[5]);
    if ((threads == -1 || all.renew < 0) && PyErr_Occurred()) return NULL;
    Py_ssize_t count = 0, others = 0;
    Py_buffer *new = get_arrays(args[0], &count, "f"), *old = new ? get_arrays(args[1], &others, "f") : NULL, cuts, out;
    if (old && count != others) PyErr_SetString(PyExc_ValueError, "as many new as old arrays are needed");
    if (old && count == others && !get_array(args[2], &cuts, "d", 0)) {
        if (!get_array(args[3], &out, "d", 1)) {
            failed = get_cuts(&cuts, &all) || compare(new, old, count, &out, &all, threads);
            PyBuffer_Release(&out);
        }
        PyBuffer_Release(&cuts);
    }
    if (new) release_arrays(new, count);
    if (old) release_arrays(old, others);
    if (failed) return NULL;
    Py_RETURN_NONE;
}
