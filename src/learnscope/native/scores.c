/* Scores of examples from their logits, in float64, four rows side by side, and copies of what a loop may overwrite. */

#include <math.h>

#include "kernels.h"

#define ROWS 4
#define FAR 80.0 /* how far below the largest logit the gold one counts as nearly underflowing */

typedef double quad __attribute__((vector_size(32), aligned(8)));
typedef int64_t longs __attribute__((vector_size(32), aligned(8)));

INLINE quad chosen(longs mask, quad yes, quad no) {
    return (quad)(((longs)yes & mask) | ((longs)no & ~mask));
}

INLINE quad all_of(double value) { return (quad){value, value, value, value}; }

/* 2^k for whole k, given as 1.5·2^52 + k, down to −1022. */
INLINE quad power_of_two(longs k) { return (quad)((k + 1023) << 52); }

/* exp of numbers that are 0 or less, within two units in the last place, as in Cephes (Moshier): a rational function on
   ±ln 2 / 2. NaN stays NaN. */
INLINE quad exp_below(quad x) {
    const quad shift = all_of(0x1.8p52);
    x = chosen(x < -750.0, all_of(-750.0), x); /* 0 in float64 */
    quad rounded = x * 1.4426950408889634 + shift;
    longs k = (longs)rounded - (longs)shift;
    quad whole = rounded - shift;
    quad r = (x - whole * 6.93145751953125e-1) - whole * 1.42860682030941723212e-6, square = r * r;
    quad p = r * ((1.26177193074810590878e-4 * square + 3.02994407707441961300e-2) * square + 1.0);
    quad q = ((3.00198505138664455042e-6 * square + 2.52448340349684104192e-3) * square + 2.27265548208155028766e-1) *
                    square + 2.0;
    quad e = 1.0 + 2.0 * (p / (q - p));
    longs half = k >> 1; /* in two steps, as 2^k itself may underflow where the product does not */
    return e * power_of_two(half) * power_of_two(k - half);
}

/* The same class of four rows. */
INLINE quad of_rows(const void *const *rows, Py_ssize_t c, int wide) {
    quad values;
    if (wide)
        values = (quad){((const double *)rows[0])[c], ((const double *)rows[1])[c], ((const double *)rows[2])[c],
                           ((const double *)rows[3])[c]};
    else
        values = (quad){((const float *)rows[0])[c], ((const float *)rows[1])[c], ((const float *)rows[2])[c],
                           ((const float *)rows[3])[c]};
    return values;
}

enum { P_GOLD, MARGIN, LOSS, EL2N, SCORES };

typedef struct {
    const char *logits;
    const int64_t *targets;
    Py_ssize_t rows, classes;
    double *scores;
    char *correct;
    int64_t *predicted;
} batch;

/* Rows [from, from + 4), or as many as there are. */
INLINE void score_rows(const batch *given, Py_ssize_t from, int wide) {
    const void *rows[ROWS];
    longs gold;
    for (int lane = 0; lane < ROWS; lane++) { /* where there are fewer, the last one again */
        Py_ssize_t row = from + lane < given->rows ? from + lane : given->rows - 1;
        rows[lane] = given->logits + row * given->classes * (wide ? 8 : 4);
        gold[lane] = given->targets[row];
    }
    quad at_gold = all_of(0), best = all_of(-INFINITY);
    longs first = (longs){0, 0, 0, 0}, odd = first;
    for (Py_ssize_t c = 0; c < given->classes; c++) {
        quad z = of_rows(rows, c, wide);
        longs column = (longs){c, c, c, c}, is_gold = gold == column;
        odd |= z != z;
        at_gold = chosen(is_gold, z, at_gold);
        longs better = (z > best) & ~is_gold;
        best = chosen(better, z, best);
        first = (column & better) | (first & ~better);
    }
    quad top = chosen(odd, all_of(NAN), chosen(at_gold > best, at_gold, best));
    quad small = all_of(0), squares = all_of(0);
    for (Py_ssize_t c = 0; c < given->classes; c++) {
        longs column = (longs){c, c, c, c};
        /* without the gold entry, so that 1 − p is a sum of small numbers, not a difference of large ones */
        quad other = chosen(gold == column, all_of(0), exp_below(of_rows(rows, c, wide) - top));
        small += other;
        squares += other * other;
    }
    quad below = top - at_gold, gold_exp = exp_below(-below), total = small + gold_exp, ratio = small / gold_exp;
    squares += small * small;
    for (int lane = 0; lane < ROWS && from + lane < given->rows; lane++) {
        double *score = given->scores + from + lane;
        /* where all others are −∞ and gold is too, nothing is larger: the first class is predicted */
        Py_ssize_t instead = best[lane] == -INFINITY && gold[lane] == 0 ? 1 : first[lane];
        int right = at_gold[lane] > best[lane] || (at_gold[lane] == best[lane] && gold[lane] < instead);
        score[P_GOLD * given->rows] = gold_exp[lane] / total[lane];
        score[MARGIN * given->rows] = odd[lane] ? NAN : at_gold[lane] - best[lane];
        score[LOSS * given->rows] = below[lane] > FAR ? below[lane] + log(total[lane]) : log1p(ratio[lane]);
        score[EL2N * given->rows] = sqrt(squares[lane]) / total[lane];
        given->correct[from + lane] = (char)(right && !odd[lane]);
        given->predicted[from + lane] = right || odd[lane] ? -1 : instead;
    }
}

static void score_all(const batch *given, int wide) {
    if (wide)
        for (Py_ssize_t from = 0; from < given->rows; from += ROWS) score_rows(given, from, 1);
    else
        for (Py_ssize_t from = 0; from < given->rows; from += ROWS) score_rows(given, from, 0);
}

static int in_range(const batch *given) {
    int outside = 0;
    for (Py_ssize_t row = 0; row < given->rows; row++)
        outside |= given->targets[row] < 0 || given->targets[row] >= given->classes;
    return !outside;
}

/* example_scores(logits, targets, scores, correct, predicted) */
PyObject *example_scores(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    static const char *const formats[] = {"fd", "lq", "!d", "!?", "!lq"};
    Py_buffer views[5];
    if (get_all("example_scores", args, given, 5, formats, views)) return NULL;
    Py_ssize_t rows = entries_of(&views[1]), entries = entries_of(&views[0]);
    batch all = {views[0].buf, views[1].buf, rows, rows ? entries / rows : 0, views[2].buf, views[3].buf, views[4].buf};
    int fits = rows * all.classes == entries && (!rows || all.classes > 1) && entries_of(&views[2]) == SCORES * rows &&
               entries_of(&views[3]) == rows && entries_of(&views[4]) == rows;
    int inside = fits && in_range(&all);
    if (inside) score_all(&all, format_of(&views[0]) == 'd');
    release_all(views, 5);
    if (!fits) return PyErr_Format(PyExc_ValueError, "logits, targets and what is written are not of %zd rows", rows);
    return PyBool_FromLong(inside);
}

/* bytes_at(address, bytes) */
PyObject *bytes_at(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 2) return PyErr_Format(PyExc_TypeError, "bytes_at takes 2 arguments, not %zd", given);
    const char *from = PyLong_AsVoidPtr(args[0]);
    Py_ssize_t bytes = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (bytes < 0 || (bytes && !from)) return PyErr_Format(PyExc_ValueError, "there is nothing to copy");
    return PyBytes_FromStringAndSize(from ? from : "", bytes);
}

/* copy_memory(to, from, bytes, to, from, bytes, …) */
PyObject *copy_memory(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given % 3) return PyErr_Format(PyExc_TypeError, "copy_memory takes threes of arguments, not %zd", given);
    for (Py_ssize_t at = 0; at < given; at += 3) {
        void *to = PyLong_AsVoidPtr(args[at]), *from = PyLong_AsVoidPtr(args[at + 1]);
        Py_ssize_t bytes = PyLong_AsSsize_t(args[at + 2]);
        if (PyErr_Occurred()) return NULL;
        if (bytes < 0 || (bytes && !(to && from))) return PyErr_Format(PyExc_ValueError, "there is nothing to copy");
        if (bytes) memcpy(to, from, (size_t)bytes);
    }
    Py_RETURN_NONE;
}
