/* What a loss of classes is given, counted in one look at its logits: nothing but whole numbers comes out. */

#include <math.h>

#include "kernels.h"

#define TOGETHER 16 /* rows after which is asked whether any column is still in question */

enum { IGNORED, OUT_OF_RANGE, COUNTED, RIGHT, FINITE, PROBABILITIES, LOGPROBS, OVER_BATCH, NUMBERS };
enum { NOT_SHARES = 1, ODD = 2 }; /* an entry that is no probability, or NaN */

/* Entries that may be probabilities: their sum may be so far off 1; their logarithms, and the largest of these. */
typedef struct {
    double near, wide, lowest;
} bounds;

typedef struct {
    const char *logits;
    const int64_t *targets;
    Py_ssize_t rows, classes;
    int64_t ignored, *sums, *target_counts, *predicted_counts;
    bounds of_rows, of_columns;
    char *columns; /* by column the largest entry, in the logits' own kind; then what it is not; NULL: not asked */
    int32_t *not;
} counting;

/* The largest of a row that is no NaN; what the row is not, into `not`. */
static float highest_of(const float *row, Py_ssize_t width, int *not) {
    floats top[HALVES];
    ints below[HALVES] = {0}, odd[HALVES] = {0};
    for (int half = 0; half < HALVES; half++) top[half] = (floats){0} - INFINITY;
    Py_ssize_t at = 0;
    for (; at + LANES <= width; at += LANES) {
        UNROLLED(int half = 0; half < HALVES; half++) {
            floats x = *(const floats *)(row + at + IN_HALF * half);
            top[half] = larger(x, top[half]);
            below[half] |= x < 0.0f;
            odd[half] |= x != x;
        }
    }
    int any_below = 0, any_odd = 0;
    float most = -INFINITY;
    for (int half = 0; half < HALVES; half++) any_below |= any(below[half]), any_odd |= any(odd[half]);
    for (int lane = 0; lane < LANES; lane++) {
        float value = ((const float *)top)[lane];
        most = value > most ? value : most;
    }
    for (; at < width; at++) {
        float x = row[at];
        most = x > most ? x : most;
        any_below |= x < 0, any_odd |= x != x;
    }
    *not = (any_below ? NOT_SHARES : 0) | (any_odd ? ODD : 0);
    return most;
}

static double highest_of_wide(const double *row, Py_ssize_t width, int *not) {
    int below = 0, odd = 0;
    double most = -INFINITY;
    for (Py_ssize_t at = 0; at < width; at++) {
        double x = row[at];
        most = x > most ? x : most;
        below |= x < 0, odd |= x != x;
    }
    *not = (below ? NOT_SHARES : 0) | (odd ? ODD : 0);
    return most;
}

/* Where a row's largest entry stands first; it is there. */
static Py_ssize_t first_of(const float *row, Py_ssize_t width, float most) {
    Py_ssize_t at = 0;
    for (; at + LANES <= width; at += LANES) {
        ints found = {0};
        UNROLLED(int half = 0; half < HALVES; half++) found |= *(const floats *)(row + at + IN_HALF * half) == most;
        if (any(found)) break;
    }
    while (at < width - 1 && row[at] != most) at++;
    return at;
}

static Py_ssize_t first_of_wide(const double *row, Py_ssize_t width, double most) {
    Py_ssize_t at = 0;
    while (at < width - 1 && row[at] != most) at++;
    return at;
}

static void look_at_columns(const float *row, Py_ssize_t width, float *top, int32_t *not) {
    Py_ssize_t at = 0;
    for (; at + LANES <= width; at += LANES) {
        UNROLLED(int half = 0; half < HALVES; half++) {
            Py_ssize_t here = at + IN_HALF * half;
            floats x = *(const floats *)(row + here);
            *(floats *)(top + here) = larger(x, *(const floats *)(top + here));
            *(ints *)(not + here) |= ((x < 0.0f) & NOT_SHARES) | ((x != x) & ODD);
        }
    }
    for (; at < width; at++) {
        top[at] = row[at] > top[at] ? row[at] : top[at];
        not[at] |= (row[at] < 0 ? NOT_SHARES : 0) | (row[at] != row[at] ? ODD : 0);
    }
}

static void look_at_wide_columns(const double *row, Py_ssize_t width, double *top, int32_t *not) {
    for (Py_ssize_t at = 0; at < width; at++) {
        top[at] = row[at] > top[at] ? row[at] : top[at];
        not[at] |= (row[at] < 0 ? NOT_SHARES : 0) | (row[at] != row[at] ? ODD : 0);
    }
}

INLINE double entry(const void *values, Py_ssize_t at, int wide) {
    return wide ? ((const double *)values)[at] : ((const float *)values)[at];
}

/* Whether entries with this maximum may be probabilities, or their logarithms: of most logits neither. */
INLINE int may_be_shares(const bounds *given, double most, int not) { return !not && most <= 1 + given->near; }
INLINE int may_be_logarithms(const bounds *given, double most, int not) {
    return !(not & ODD) && most <= given->wide && most >= given->lowest;
}

static int are_logarithms(const bounds *given, const void *values, Py_ssize_t count, Py_ssize_t step, int wide) {
    double total = 0;
    for (Py_ssize_t at = 0; at < count; at++) total += exp(entry(values, at * step, wide));
    return fabs(log(total)) <= given->wide;
}

static int add_up_to_one(const bounds *given, const void *values, Py_ssize_t count, int wide) {
    double total = 0;
    for (Py_ssize_t at = 0; at < count; at++) total += entry(values, at, wide);
    return fabs(total - 1) <= given->near;
}

/* Counts a target; its class, or as many as there are classes. */
static Py_ssize_t count_target(counting *given, Py_ssize_t row) {
    int64_t target = given->targets[row];
    int ignored = target == given->ignored, inside = !ignored && target >= 0 && target < given->classes;
    Py_ssize_t chosen = inside ? (Py_ssize_t)target : given->classes;
    given->sums[IGNORED] += ignored;
    given->sums[OUT_OF_RANGE] += !ignored && !inside;
    given->sums[COUNTED] += inside;
    given->target_counts[chosen]++;
    return chosen;
}

INLINE void count_row(counting *given, Py_ssize_t row, int wide) {
    Py_ssize_t width = given->classes, chosen = count_target(given, row), predicted = width;
    const void *entries = given->logits + row * width * (wide ? 8 : 4);
    int not;
    double most = wide ? highest_of_wide(entries, width, &not) : highest_of(entries, width, &not);
    if (may_be_shares(&given->of_rows, most, not))
        given->sums[PROBABILITIES] += add_up_to_one(&given->of_rows, entries, width, wide);
    if (may_be_logarithms(&given->of_rows, most, not))
        given->sums[LOGPROBS] += are_logarithms(&given->of_rows, entries, width, 1, wide);
    if (isfinite(most) && !(not & ODD)) {
        given->sums[FINITE]++;
        predicted = wide ? first_of_wide(entries, width, most) : first_of(entries, width, (float)most);
        given->sums[RIGHT] += predicted == chosen;
    }
    given->predicted_counts[chosen < width ? predicted : width]++;
}

/* Whether any column may still be made of logarithms, or of probabilities. */
INLINE int any_open(const counting *given, int wide) {
    for (Py_ssize_t at = 0; at < given->classes; at++) {
        double most = entry(given->columns, at, wide);
        int no_shares = given->not[at] || most > 1 + given->of_columns.near;
        if (!(given->not[at] & ODD) && !(most > given->of_columns.wide && no_shares)) return 1;
    }
    return 0;
}

/* Counts columns of logarithms; whether any may be of probabilities, over the whole batch or parts of it. */
INLINE int count_columns(counting *given, int wide) {
    for (Py_ssize_t at = 0; at < given->classes; at++) {
        double most = entry(given->columns, at, wide);
        if (may_be_shares(&given->of_columns, most, given->not[at])) return 1;
        if (may_be_logarithms(&given->of_columns, most, given->not[at]))
            given->sums[OVER_BATCH] += are_logarithms(&given->of_columns, given->logits + at * (wide ? 8 : 4),
                                                      given->rows, given->classes, wide);
    }
    return 0;
}

/* Whether all could be counted. */
INLINE int count_all(counting *given, int wide) {
    int open = given->columns != NULL;
    for (Py_ssize_t at = 0; open && at < given->classes; at++) {
        if (wide) ((double *)given->columns)[at] = -INFINITY;
        else ((float *)given->columns)[at] = -INFINITY;
    }
    for (Py_ssize_t row = 0; row < given->rows; row++) {
        const void *entries = given->logits + row * given->classes * (wide ? 8 : 4);
        count_row(given, row, wide);
        if (!open) continue;
        if (wide) look_at_wide_columns(entries, given->classes, (double *)given->columns, given->not);
        else look_at_columns(entries, given->classes, (float *)given->columns, given->not);
        /* of most logits a few rows settle every column */
        if (row % TOGETHER == TOGETHER - 1) open = any_open(given, wide);
    }
    return !open || !count_columns(given, wide);
}

static bounds bounds_of(double near, Py_ssize_t width) {
    double logarithm = log((double)width), wide = near * (logarithm > 1 ? logarithm : 1);
    return (bounds){near, wide, -logarithm - wide - 1e-6}; /* Σe^x ≤ width·e^most */
}

/* class_counts(logits, targets, ignored, near, columns, sums, target_counts, predicted_counts) */
PyObject *class_counts(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    static const char *const formats[] = {"fd", "lq", "#", "d", "#", "!lq", "!lq", "!lq"};
    Py_buffer views[8];
    if (get_all("class_counts", args, given, 8, formats, views)) return NULL;
    Py_ssize_t rows = entries_of(&views[1]), entries = entries_of(&views[0]), classes = rows ? entries / rows : 0;
    counting all = {.logits = views[0].buf, .targets = views[1].buf, .rows = rows, .classes = classes,
                    .ignored = views[2].len, .sums = views[5].buf, .target_counts = views[6].buf,
                    .predicted_counts = views[7].buf};
    int fits = classes > 0 && rows * classes == entries && entries_of(&views[3]) == 1 &&
               entries_of(&views[5]) == NUMBERS && entries_of(&views[6]) == classes + 1 &&
               entries_of(&views[7]) == classes + 1;
    int wide = format_of(&views[0]) == 'd', asked = fits && views[4].len, counted = 0;
    if (asked) all.columns = PyMem_Calloc((size_t)classes, 8 + sizeof(int32_t));
    if (fits && (all.columns || !asked)) {
        double near = *(const double *)views[3].buf;
        all.of_rows = bounds_of(near, classes), all.of_columns = bounds_of(near, rows);
        if (asked) all.not = (int32_t *)(all.columns + 8 * classes);
        for (int index = 5; index < 8; index++) memset(views[index].buf, 0, (size_t)views[index].len);
        if (entries < ALONE) {
            counted = wide ? count_all(&all, 1) : count_all(&all, 0);
        } else {
            Py_BEGIN_ALLOW_THREADS
            counted = wide ? count_all(&all, 1) : count_all(&all, 0);
            Py_END_ALLOW_THREADS
        }
    }
    int lacks_memory = asked && !all.columns;
    PyMem_Free(all.columns);
    release_all(views, 8);
    if (!fits) return PyErr_Format(PyExc_ValueError, "logits, targets and what is written do not fit %zd rows", rows);
    if (lacks_memory) return PyErr_NoMemory();
    return PyBool_FromLong(counted);
}
