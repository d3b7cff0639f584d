/* Sums over presentations, by group. */

#include <math.h>

#include "kernels.h"

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
