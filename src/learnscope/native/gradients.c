/* Statistics of gradients, in one pass over each. */

#include <math.h>

#include "kernels.h"

#define BLOCK 4096
#define AHEAD 8192 /* bytes between what is read and what is fetched: the processor's own guesses end with a page */

enum { SQUARES, ZEROS, NANS, INFINITE, LARGEST, AT_LARGEST, COLUMNS };

typedef struct {
    double squares, zeros, nans, infinite, largest, at_largest;
} sums;

/* Entries [from, to) of one array. */
typedef struct {
    const Py_buffer *view;
    Py_ssize_t owner, from, to;
    sums found;
} piece;

static void count_odd(const double value, sums *found) {
    found->nans += isnan(value) != 0;
    found->infinite += isinf(value) != 0;
}

/* Σx², zeros and max|x| of a few entries, which a core's nearest cache still holds afterwards. */
static float of_block(const float *values, Py_ssize_t entries, double *squares_out, double *zeros_out) {
    doubles squares[QUARTERS] = {0};
    ints zeros[HALVES] = {0};
    floats largest[HALVES] = {0};
    Py_ssize_t at = 0;
    for (; at + LANES <= entries; at += LANES) {
        FETCH(values + at, AHEAD, 0);
        UNROLLED(int part = 0; part < QUARTERS; part++) {
            doubles wide = widened(values + at + IN_QUARTER * part);
            squares[part] += wide * wide;
        }
        UNROLLED(int half = 0; half < HALVES; half++) {
            floats x = *(const floats *)(values + at + IN_HALF * half);
            zeros[half] -= x == 0.0f;
            largest[half] = larger((floats)((ints)x & 0x7fffffff), largest[half]);
        }
    }
    double lanes[LANES];
    memcpy(lanes, squares, sizeof lanes);
    for (int lane = 0; at + lane < entries; lane++) {
        float value = values[at + lane], size = fabsf(value);
        lanes[lane] += (double)value * value;
        zeros[0][0] += value == 0;
        largest[0][0] = size > largest[0][0] ? size : largest[0][0];
    }
    *squares_out += sum_of(lanes);
    float most = 0;
    for (int lane = 0; lane < LANES; lane++) {
        float size = ((const float *)largest)[lane];
        *zeros_out += ((const int32_t *)zeros)[lane];
        most = size > most ? size : most;
    }
    return most;
}

static void of_floats(const float *values, Py_ssize_t entries, sums *found) {
    for (Py_ssize_t from = 0; from < entries; from += BLOCK) {
        const float *block = values + from;
        Py_ssize_t length = entries - from < BLOCK ? entries - from : BLOCK;
        float most = of_block(block, length, &found->squares, &found->zeros);
        if (most < found->largest) continue; /* as nearly always: entries as large as this one need not be counted */
        int32_t as_large = 0;
        for (Py_ssize_t at = 0; at < length; at++) as_large += fabsf(block[at]) == most;
        found->at_largest = as_large + (most == found->largest ? found->at_largest : 0);
        found->largest = most;
    }
    if (!isfinite(found->squares))
        for (Py_ssize_t at = 0; at < entries; at++) count_odd(values[at], found);
}

static void of_doubles(const double *values, Py_ssize_t entries, sums *found) {
    double squares[LANES] = {0};
    for (Py_ssize_t at = 0; at < entries; at++) {
        double size = fabs(values[at]);
        squares[at % LANES] += size * size;
        found->zeros += size == 0;
        found->at_largest = size > found->largest ? 1 : found->at_largest + (size == found->largest);
        found->largest = size > found->largest ? size : found->largest;
        count_odd(size, found);
    }
    found->squares = sum_of(squares);
}

static void read_piece(void *context, Py_ssize_t job) {
    piece *part = (piece *)context + job;
    memset(&part->found, 0, sizeof part->found);
    if (format_of(part->view) == 'f')
        of_floats((const float *)part->view->buf + part->from, part->to - part->from, &part->found);
    else
        of_doubles((const double *)part->view->buf + part->from, part->to - part->from, &part->found);
}

static void add(double *out, Py_ssize_t width, const piece *part) {
    double *column = out + part->owner;
    const sums *found = &part->found;
    column[SQUARES * width] += found->squares;
    column[ZEROS * width] += found->zeros;
    column[NANS * width] += found->nans;
    column[INFINITE * width] += found->infinite;
    double *largest = &column[LARGEST * width], *at_largest = &column[AT_LARGEST * width];
    if (found->largest > *largest) {
        *largest = found->largest;
        *at_largest = found->at_largest;
    } else if (found->largest == *largest) {
        *at_largest += found->at_largest;
    }
}

/* The largest entry tells nothing if there is none but 0, or if one is not finite. */
static void forget_unknown(double *out, Py_ssize_t width) {
    for (double *column = out; column < out + width; column++)
        if (column[LARGEST * width] == 0 || column[NANS * width] + column[INFINITE * width] > 0)
            column[AT_LARGEST * width] = NAN;
}

/* gradient_sums(arrays, out, threads): out is float64, six rows of one entry for each array. */
PyObject *gradient_sums(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 3) return PyErr_Format(PyExc_TypeError, "gradient_sums takes 3 arguments, not %zd", given);
    int threads = (int)PyLong_AsLong(args[2]);
    if (threads == -1 && PyErr_Occurred()) return NULL;
    Py_ssize_t count = 0, pieces = 0, total = 0;
    Py_buffer *views = get_arrays(args[0], &count, "fd"), out;
    if (!views) return NULL;
    if (get_array(args[1], &out, "d", 1)) {
        release_arrays(views, count);
        return NULL;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        pieces += (entries_of(&views[index]) + PIECE - 1) / PIECE;
        total += entries_of(&views[index]);
    }
    piece *parts = PyMem_Malloc(sizeof(piece) * (size_t)(pieces ? pieces : 1));
    int fits = entries_of(&out) == COLUMNS * count;
    if (parts && fits) {
        piece *next = parts;
        for (Py_ssize_t index = 0; index < count; index++)
            for (Py_ssize_t from = 0, entries = entries_of(&views[index]); from < entries; from += PIECE)
                *next++ = (piece){.view = &views[index], .owner = index, .from = from,
                                  .to = from + PIECE < entries ? from + PIECE : entries};
        if (total < ALONE) {
            in_parallel(1, pieces, read_piece, parts);
        } else {
            Py_BEGIN_ALLOW_THREADS
            in_parallel(threads, pieces, read_piece, parts);
            Py_END_ALLOW_THREADS
        }
        memset(out.buf, 0, (size_t)out.len);
        for (Py_ssize_t at = 0; at < pieces; at++) add(out.buf, count, &parts[at]);
        forget_unknown(out.buf, count);
    }
    PyBuffer_Release(&out);
    release_arrays(views, count);
    PyMem_Free(parts);
    if (!fits) return PyErr_Format(PyExc_ValueError, "out has no room for %d rows of %zd", COLUMNS, count);
    if (!parts) return PyErr_NoMemory();
    Py_RETURN_NONE;
}
