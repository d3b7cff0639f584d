/* Sums over presentations, by group, and numbers at places of a sorted row. */

#include <math.h>
#include <stdlib.h>

#include "kernels.h"

#define MOST_TURNS 60

enum { SHOWN, RIGHT, SCORED, P_GOLD, LOSS, COLUMNS };

/* group_sums(which, rows, correct, p_gold, loss, table): of every presentation the group is `which`, and the group's row
   in the table is in `rows`. One by one, so that the sums are the same to the last digit however they were batched. */
PyObject *group_sums(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    static const char *const formats[] = {"lq", "lq", "?", "d", "d", "!d"};
    Py_buffer views[6];
    if (get_all("group_sums", args, given, 6, formats, views)) return NULL;
    const int64_t *which = views[0].buf, *row_of = views[1].buf;
    const char *correct = views[2].buf;
    const double *p_gold = views[3].buf, *loss = views[4].buf;
    double *table = views[5].buf;
    Py_ssize_t count = entries_of(&views[2]), known = entries_of(&views[1]), rows = entries_of(&views[5]) / COLUMNS;
    int fits = entries_of(&views[0]) == count && entries_of(&views[3]) == count && entries_of(&views[4]) == count &&
               entries_of(&views[5]) == rows * COLUMNS;
    for (Py_ssize_t at = 0; fits && at < known; at++) fits = row_of[at] >= 0 && row_of[at] < rows;
    for (Py_ssize_t at = 0; fits && at < count; at++) fits = which[at] >= 0 && which[at] < known;
    for (Py_ssize_t at = 0; fits && at < count; at++) {
        double *sums = table + row_of[which[at]] * COLUMNS;
        int scored = isfinite(p_gold[at]) && isfinite(loss[at]);
        sums[SHOWN] += 1;
        sums[RIGHT] += correct[at] != 0;
        sums[SCORED] += scored;
        sums[P_GOLD] += scored ? p_gold[at] : 0;
        sums[LOSS] += scored ? loss[at] : 0;
    }
    release_all(views, 6);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the groups, the scores and the table do not fit together");
    Py_RETURN_NONE;
}

/* Moves the entries of [from, to) for which less or, with `equal`, not more than the pivot to the front; where they end.
   Without a branch that depends on an entry: half of these would be guessed wrongly. */
INLINE Py_ssize_t parted(double *values, Py_ssize_t from, Py_ssize_t to, double pivot, int equal) {
    Py_ssize_t end = from;
    for (Py_ssize_t at = from; at < to; at++) {
        double value = values[at];
        values[at] = values[end];
        values[end] = value;
        end += equal ? value <= pivot : value < pivot;
    }
    return end;
}

static int by_size(const void *one, const void *other) {
    double first = *(const double *)one, second = *(const double *)other;
    return (first > second) - (first < second);
}

/* Puts the number that belongs at `place` of the sorted row there, those that are not more before it. */
static void select_place(double *values, Py_ssize_t from, Py_ssize_t to, Py_ssize_t place) {
    for (int turns = 0; to - from > 1; turns++) {
        if (turns > MOST_TURNS) { /* as good as never: the pivots have been bad ones */
            qsort(values + from, (size_t)(to - from), sizeof *values, by_size);
            return;
        }
        double first = values[from], middle = values[from + (to - from) / 2], last = values[to - 1];
        double low = first < middle ? first : middle, high = first < middle ? middle : first;
        double pivot = last < low ? low : last > high ? high : last;
        Py_ssize_t end = parted(values, from, to, pivot, 0);
        if (place < end) {
            to = end;
            continue;
        }
        from = end;
        end = parted(values, from, to, pivot, 1); /* many may be equal */
        if (place < end) return;
        from = end;
    }
}

/* numbers_at(values, places, out): of every row of `values` the numbers at these places of it sorted, places ascending.
   The rows are reordered; none may have a NaN. */
PyObject *numbers_at(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    static const char *const formats[] = {"!d", "lq", "!d"};
    Py_buffer views[3];
    if (get_all("numbers_at", args, given, 3, formats, views)) return NULL;
    Py_ssize_t wanted = entries_of(&views[1]), rows = wanted ? entries_of(&views[2]) / wanted : 0;
    Py_ssize_t length = rows ? entries_of(&views[0]) / rows : 0;
    const int64_t *places = views[1].buf;
    double *values = views[0].buf, *out = views[2].buf;
    int fits = rows > 0 && entries_of(&views[2]) == rows * wanted && entries_of(&views[0]) == rows * length;
    for (Py_ssize_t at = 0; fits && at < wanted; at++)
        fits = places[at] >= (at ? places[at - 1] : 0) && places[at] < length;
    for (Py_ssize_t row = 0; fits && row < rows; row++, values += length, out += wanted) {
        Py_ssize_t from = 0;
        for (Py_ssize_t at = 0; at < wanted; at++) {
            select_place(values, from, length, places[at]);
            out[at] = values[places[at]];
            from = places[at];
        }
    }
    release_all(views, 3);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the rows, the places and what is written do not fit together");
    Py_RETURN_NONE;
}
