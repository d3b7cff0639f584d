/* Sums over the logits of two models at the same positions, of which their divergence is made. */

#include <math.h>

#include "kernels.h"

#define GROUP 128 /* entries whose d decide together how many terms they need */

enum { SHIFTED, CURVED, SQUARES, GROWTH, COLUMNS };

/* 1/(n + 2)!, of e^x − 1 − x = x²(1/2 + x/6 + …) */
static const float TERMS[] = {1.f / 2,    1.f / 6,     1.f / 24,     1.f / 120,     1.f / 720,
                              1.f / 5040, 1.f / 40320, 1.f / 362880, 1.f / 3628800, 1.f / 39916800};

INLINE floats size_of(floats x) { return (floats)((ints)x & 0x7fffffff); }

INLINE floats series(floats x, int terms) {
    floats sum = (x - x) + TERMS[terms - 1]; /* NaN of NaN */
    for (int term = terms - 2; term >= 0; term--) sum = sum * x + TERMS[term];
    return sum * x * x;
}

/* e^x: 2^k e^r with |r| ≤ ln 2/2; 0 and ∞ where float32 has no such number. */
INLINE floats exponential(floats x) {
    floats bounded = pick(x > 89.f, (x - x) + 89.f, pick(x < -104.f, (x - x) - 104.f, x));
    floats shifted = bounded * 1.44269504f + 12582912.f; /* rounds to a whole number in the lowest bits */
    floats whole = shifted - 12582912.f;
    ints power = (ints)shifted - 0x4b400000;
    floats rest = bounded - whole * 0.693359375f + whole * 2.12194440e-4f;
    floats sum = (x - x) + 1.f / 5040;
    const float factors[] = {1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 1.f / 2, 1.f, 1.f};
    for (int term = 0; term < 7; term++) sum = sum * rest + factors[term];
    ints half = power >> 1, other = power - half; /* in two factors, as the whole power may be out of range */
    return sum * (floats)((half + 127) << 23) * (floats)((other + 127) << 23);
}

/* e^d − 1 − d: of a series with as many terms as the largest |d| of the group needs for 1e-8. */
INLINE floats curve(floats d, int terms) {
    if (terms) return series(d, terms);
    floats near = pick(d > 1.f, (d - d) + 1.f, pick(d < -1.f, (d - d) - 1.f, d));
    return pick(size_of(d) < 1.f, series(near, 10), exponential(d) - 1.f - d);
}

typedef struct {
    doubles column[COLUMNS][QUARTERS];
    float best;
    Py_ssize_t best_group;
} row_sums;

INLINE void widen_into(doubles *into, const floats *from) {
    float values[LANES];
    memcpy(values, from, sizeof values);
    for (int part = 0; part < QUARTERS; part++) into[part] += widened(values + IN_QUARTER * part);
}

/* Curves of the group's d, weighted. */
INLINE void add_curves(const float *d, const float *weights, int terms, doubles *into) {
    for (int at = 0; at < GROUP; at += LANES) {
        floats curves[HALVES];
        for (int half = 0; half < HALVES; half++) {
            Py_ssize_t here = at + IN_HALF * half;
            curves[half] = curve(*(const floats *)(d + here), terms) * *(const floats *)(weights + here);
        }
        widen_into(into, curves);
    }
}

/* Adds a whole group; returns the largest entry of b. */
static float add_group(const float *a, const float *b, const float *weights, row_sums *into) {
    _Alignas(64) float d[GROUP];
    floats largest[HALVES] = {0}, top[HALVES];
    for (int half = 0; half < HALVES; half++) top[half] = *(const floats *)(b + IN_HALF * half);
    for (int at = 0; at < GROUP; at += LANES) {
        floats shifted[HALVES], squares[HALVES], growth[HALVES];
        UNROLLED(int half = 0; half < HALVES; half++) {
            Py_ssize_t here = at + IN_HALF * half;
            floats before = *(const floats *)(a + here), after = *(const floats *)(b + here), moved = after - before;
            *(floats *)(d + here) = moved;
            shifted[half] = *(const floats *)(weights + here) * moved;
            squares[half] = moved * moved;
            growth[half] = (before + after) * moved;
            largest[half] = larger(size_of(moved), largest[half]);
            top[half] = larger(after, top[half]);
        }
        widen_into(into->column[SHIFTED], shifted);
        widen_into(into->column[SQUARES], squares);
        widen_into(into->column[GROWTH], growth);
    }
    float furthest = 0, highest = -INFINITY;
    for (int lane = 0; lane < LANES; lane++) {
        float size = ((const float *)largest)[lane], value = ((const float *)top)[lane];
        furthest = size > furthest ? size : furthest;
        highest = value > highest ? value : highest;
    }
    if (furthest < 0.045f) add_curves(d, weights, 4, into->column[CURVED]);
    else if (furthest < 0.25f) add_curves(d, weights, 6, into->column[CURVED]);
    else if (furthest < 1.f) add_curves(d, weights, 10, into->column[CURVED]);
    else add_curves(d, weights, 0, into->column[CURVED]);
    return highest;
}

typedef struct {
    const float *a, *b, *weights;
    double *out;
    int64_t *first;
    Py_ssize_t rows, width;
} comparison;

/* The first of a row's largest entries, -1 if one is NaN; the group that it is in is known. */
static int64_t first_of(const float *b, Py_ssize_t width, const row_sums *found) {
    if (isnan(sum_of((const double *)found->column[SQUARES])))
        for (Py_ssize_t at = 0; at < width; at++)
            if (isnan(b[at])) return -1;
    for (Py_ssize_t at = found->best_group; at < width; at++)
        if (b[at] == found->best) return at;
    return 0; /* all are −∞ */
}

static void compare_row(void *context, Py_ssize_t row) {
    const comparison *all = context;
    const float *from[3] = {all->a + row * all->width, all->b + row * all->width, all->weights + row * all->width};
    Py_ssize_t whole = all->width / GROUP * GROUP, rest = all->width - whole;
    row_sums found;
    memset(&found, 0, sizeof found);
    found.best = -INFINITY;
    for (Py_ssize_t at = 0; at < whole; at += GROUP) {
        float top = add_group(from[0] + at, from[1] + at, from[2] + at, &found);
        if (top > found.best) found.best = top, found.best_group = at;
    }
    if (rest) { /* with zeros behind, which add nothing to any sum */
        _Alignas(64) float ends[3][GROUP] = {{0}};
        for (int which = 0; which < 3; which++) memcpy(ends[which], from[which] + whole, sizeof(float) * (size_t)rest);
        add_group(ends[0], ends[1], ends[2], &found);
        for (Py_ssize_t at = 0; at < rest; at++)
            if (ends[1][at] > found.best) found.best = ends[1][at], found.best_group = whole;
    }
    for (int column = 0; column < COLUMNS; column++)
        all->out[column * all->rows + row] = sum_of((const double *)found.column[column]);
    all->first[row] = first_of(from[1], all->width, &found);
}

/* divergence_sums(a, b, weights, out, first, threads): matrices of one row for each entry of `first`. */
PyObject *divergence_sums(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    static const char *const formats[] = {"f", "f", "f", "!d", "!lq", "#"};
    Py_buffer views[6];
    (void)module;
    if (get_all("divergence_sums", args, given, 6, formats, views)) return NULL;
    Py_ssize_t rows = entries_of(&views[4]), entries = entries_of(&views[0]);
    int fits = entries_of(&views[1]) == entries && entries_of(&views[2]) == entries &&
               entries_of(&views[3]) == COLUMNS * rows && (rows ? entries % rows == 0 : !entries);
    if (fits && rows) {
        comparison all = {views[0].buf, views[1].buf, views[2].buf, views[3].buf, views[4].buf, rows, entries / rows};
        int threads = entries < ALONE ? 1 : (int)views[5].len;
        Py_BEGIN_ALLOW_THREADS
        in_parallel(threads, rows, compare_row, &all);
        Py_END_ALLOW_THREADS
    }
    release_all(views, 6);
    if (!fits) return PyErr_Format(PyExc_ValueError, "matrices of one shape with %zd rows are needed", rows);
    Py_RETURN_NONE;
}
