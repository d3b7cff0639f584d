/* How much the outputs of examples differ, of entries that lie equally far apart, in float64. */

#include <math.h>

#include "kernels.h"

enum { SPREAD, COSINE, RANK, CONFIDENCE, NUMBERS };

static double product(const double *a, const double *b, Py_ssize_t length) {
    doubles sums[QUARTERS] = {0};
    Py_ssize_t at = 0;
    for (; at + LANES <= length; at += LANES)
        UNROLLED(int part = 0; part < QUARTERS; part++) {
            Py_ssize_t here = at + IN_QUARTER * part;
            sums[part] += *(const doubles *)(a + here) * *(const doubles *)(b + here);
        }
    double lanes[LANES];
    memcpy(lanes, sums, sizeof lanes);
    for (int lane = 0; at + lane < length; lane++) lanes[lane] += a[at + lane] * b[at + lane];
    return sum_of(lanes);
}

/* Every `step`th of n rows' entries, side by side. */
INLINE void gather(const void *from, Py_ssize_t between, Py_ssize_t step, Py_ssize_t n, Py_ssize_t d, int wide,
                   double *y) {
    for (Py_ssize_t row = 0; row < n; row++)
        for (Py_ssize_t at = 0; at < d; at++) {
            Py_ssize_t place = row * between + at * step;
            y[row * d + at] = wide ? ((const double *)from)[place] : ((const float *)from)[place];
        }
}

/* Σ of the rows, each divided by its length, into `total`; without gaps or branches, so that NaN stays NaN. */
static void add_units(const double *y, Py_ssize_t n, Py_ssize_t d, double *total) {
    memset(total, 0, sizeof(double) * (size_t)d);
    for (Py_ssize_t row = 0; row < n; row++) {
        double length = sqrt(product(y + row * d, y + row * d, d));
        for (Py_ssize_t at = 0; at < d; at++) total[at] += y[row * d + at] / length;
    }
}

static void centre(double *y, Py_ssize_t n, Py_ssize_t d, double *mean) {
    memset(mean, 0, sizeof(double) * (size_t)d);
    for (Py_ssize_t row = 0; row < n; row++)
        for (Py_ssize_t at = 0; at < d; at++) mean[at] += y[row * d + at];
    for (Py_ssize_t at = 0; at < d; at++) mean[at] /= (double)n;
    for (Py_ssize_t row = 0; row < n; row++)
        for (Py_ssize_t at = 0; at < d; at++) y[row * d + at] -= mean[at];
}

/* Σ over all pairs of the squares of their products. */
static double gram_squares(const double *y, Py_ssize_t n, Py_ssize_t d) {
    double own = 0, others = 0;
    for (Py_ssize_t row = 0; row < n; row++) {
        double square = product(y + row * d, y + row * d, d);
        own += square * square;
        for (Py_ssize_t other = 0; other < row; other++) {
            double found = product(y + row * d, y + other * d, d);
            others += found * found;
        }
    }
    return own + 2 * others;
}

/* Mean of the largest softmax of each row. */
static double confidence(const double *y, Py_ssize_t n, Py_ssize_t d) {
    double sum = 0;
    for (Py_ssize_t row = 0; row < n; row++) {
        double most = y[row * d], total = 0;
        for (Py_ssize_t at = 1; at < d; at++) most = y[row * d + at] > most ? y[row * d + at] : most;
        for (Py_ssize_t at = 0; at < d; at++) total += exp(y[row * d + at] - most);
        sum += 1 / total;
    }
    return sum / (double)n;
}

static void look_at(double *y, double *space, Py_ssize_t n, Py_ssize_t d, int listed, double *out) {
    out[CONFIDENCE] = listed ? confidence(y, n, d) : NAN;
    add_units(y, n, d, space);
    out[COSINE] = (product(space, space, d) - (double)n) / (double)(n * (n - 1));
    centre(y, n, d, space);
    double power = product(y, y, n * d);
    out[SPREAD] = sqrt(power / (double)(n * d));
    if (n > d) /* the products of columns are fewer, and have the same squares */
        for (Py_ssize_t row = 0; row < n; row++)
            for (Py_ssize_t at = 0; at < d; at++) space[at * n + row] = y[row * d + at];
    out[RANK] = power * power / (n > d ? gram_squares(space, d, n) : gram_squares(y, n, d));
}

/* output_spread(outputs, examples, rows, columns, listed, out): of every so many-th row and column. */
PyObject *output_spread(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    static const char *const formats[] = {"fd", "#", "#", "#", "#", "!d"};
    Py_buffer views[6];
    if (get_all("output_spread", args, given, 6, formats, views)) return NULL;
    Py_ssize_t entries = entries_of(&views[0]), examples = views[1].len, rows = views[2].len, columns = views[3].len;
    Py_ssize_t width = examples > 0 ? entries / examples : 0;
    int fits = width > 0 && examples * width == entries && rows > 0 && columns > 0 && rows < examples &&
               entries_of(&views[5]) == NUMBERS;
    double *y = NULL;
    if (fits) {
        Py_ssize_t n = 1 + (examples - 1) / rows, d = 1 + (width - 1) / columns;
        y = PyMem_Malloc(sizeof(double) * 2 * (size_t)(n * d));
        if (y) {
            if (format_of(&views[0]) == 'd') gather(views[0].buf, rows * width, columns, n, d, 1, y);
            else gather(views[0].buf, rows * width, columns, n, d, 0, y);
            look_at(y, y + n * d, n, d, (int)views[4].len, views[5].buf);
        }
        PyMem_Free(y);
    }
    release_all(views, 6);
    if (!fits) return PyErr_Format(PyExc_ValueError, "outputs and what is written are not of %zd rows", examples);
    if (!y) return PyErr_NoMemory();
    Py_RETURN_NONE;
}
