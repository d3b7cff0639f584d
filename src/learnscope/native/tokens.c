/* Tokens, and the targets of a language model beside them: whole numbers of 64 bits, few enough for plain loops. */

#include <math.h>
#include <stdlib.h>

#include "kernels.h"

#define NARROW (1 << 22) /* between the lowest and the highest token, up to which a bit for each is kept */
#define LEAST_RUN 2      /* places that a run of padding has: a single token at the end of a row may be an end mark */

static int in_order(const void *a, const void *b) {
    int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;
    return (first > second) - (first < second);
}

/* What stands most often among n > 0 numbers, every `step` of an array; of several, the lowest. -1: no memory. */
static int most_frequent(const int64_t *values, Py_ssize_t n, Py_ssize_t step, int64_t *found) {
    int64_t *ordered = PyMem_Malloc(sizeof(int64_t) * (size_t)n);
    if (!ordered) return -1;
    for (Py_ssize_t at = 0; at < n; at++) ordered[at] = values[at * step];
    qsort(ordered, (size_t)n, sizeof(int64_t), in_order);
    Py_ssize_t often = 0;
    for (Py_ssize_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && ordered[to] == ordered[from]; to++) continue;
        if (to - from > often) often = to - from, *found = ordered[from];
    }
    PyMem_Free(ordered);
    return 0;
}

/* How many different numbers there are among n > 0 whose lowest and highest are these; -1 without memory. */
static Py_ssize_t how_many_different(const int64_t *values, Py_ssize_t n, int64_t lowest, int64_t highest) {
    Py_ssize_t different = 0;
    uint64_t range = (uint64_t)highest - (uint64_t)lowest;
    if (range < NARROW) {
        unsigned char *seen = PyMem_Calloc((size_t)(range / 8 + 1), 1);
        if (!seen) return -1;
        for (Py_ssize_t at = 0; at < n; at++) {
            uint64_t place = (uint64_t)values[at] - (uint64_t)lowest;
            if (place > range) continue; /* written by another thread since */
            different += !(seen[place / 8] >> (place % 8) & 1);
            seen[place / 8] |= (unsigned char)(1 << (place % 8));
        }
        PyMem_Free(seen);
        return different;
    }
    int64_t *ordered = PyMem_Malloc(sizeof(int64_t) * (size_t)n);
    if (!ordered) return -1;
    memcpy(ordered, values, sizeof(int64_t) * (size_t)n);
    qsort(ordered, (size_t)n, sizeof(int64_t), in_order);
    for (Py_ssize_t at = 0; at < n; at++) different += !at || ordered[at] != ordered[at - 1];
    PyMem_Free(ordered);
    return different;
}

/* As in tensor/hashing.py. */
INLINE int64_t mixed(int64_t value) {
    uint64_t hash = ((uint64_t)value + 1) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ (uint64_t)((int64_t)hash >> 29)) * 0x2545F4914F6CDD1Du;
    return (int64_t)(hash ^ (uint64_t)((int64_t)hash >> 32));
}

/* A row's hash; whether it holds two different tokens, and `least` that are no padding, is returned. */
static int look_at_row(const int64_t *row, Py_ssize_t width, const int64_t *padding, Py_ssize_t least, int64_t *hash) {
    uint64_t sum = 0;
    Py_ssize_t kept = 0, not_first = 0, not_last = 0;
    int64_t first = 0;
    int differs = 0;
    for (Py_ssize_t at = 0; at < width; at++) {
        if (padding && row[at] == *padding) continue;
        if (!kept) first = row[at];
        kept++;
        differs |= row[at] != first;
        not_first += row[at] != row[0];
        not_last += row[at] != row[width - 1];
        sum += (uint64_t)mixed(row[at] ^ mixed(padding ? kept : at));
    }
    *hash = (int64_t)sum;
    Py_ssize_t own = padding ? kept : not_first < not_last ? not_first : not_last;
    return differs && own >= least;
}

/* text_numbers(tokens, width, padding, least, numbers, hashes, comparable): of all tokens the largest and how many
   different ones; of as many rows as there is room for, the hash and whether it can be compared. */
PyObject *text_numbers(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    static const char *const formats[] = {"lq", "#", "*lq", "#", "!d", "!lq", "!?"};
    Py_buffer views[7];
    if (get_all("text_numbers", args, given, 7, formats, views)) return NULL;
    const int64_t *tokens = views[0].buf, *padding = views[2].obj ? views[2].buf : NULL;
    Py_ssize_t entries = entries_of(&views[0]), width = views[1].len, rows = entries_of(&views[5]), different = 0;
    int fits = entries > 0 && width > 0 && entries % width == 0 && rows <= entries / width &&
               entries_of(&views[6]) == rows && entries_of(&views[4]) == 2 && (!padding || entries_of(&views[2]) == 1);
    if (fits) {
        int64_t lowest = tokens[0], highest = tokens[0], *hashes = views[5].buf;
        for (Py_ssize_t at = 1; at < entries; at++) {
            lowest = tokens[at] < lowest ? tokens[at] : lowest;
            highest = tokens[at] > highest ? tokens[at] : highest;
        }
        different = how_many_different(tokens, entries, lowest, highest);
        ((double *)views[4].buf)[0] = (double)highest, ((double *)views[4].buf)[1] = (double)different;
        for (Py_ssize_t row = 0; row < rows; row++)
            ((char *)views[6].buf)[row] =
                (char)look_at_row(tokens + row * width, width, padding, views[3].len, &hashes[row]);
    }
    release_all(views, 7);
    if (!fits) return PyErr_Format(PyExc_ValueError, "tokens and what is written are not of rows of %zd", width);
    if (different < 0) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

typedef struct {
    const int64_t *tokens, *targets, *padding;
    Py_ssize_t rows, length, places;
    int64_t ignored;
} text;

/* Runs of one token that rows end with (or begin, `from_start`), if it fills many of them and stands nowhere else: by
   row, how long; their sum is returned, 0 if there are none, -1 without memory. */
static Py_ssize_t runs(const text *given, int from_start, Py_ssize_t *lengths) {
    Py_ssize_t length = given->length, last = from_start ? 0 : length - 1, long_ones = 0, total = 0;
    Py_ssize_t shortest = length, longest = 0;
    int64_t token = 0;
    int elsewhere = 0;
    if (!length || !given->rows) return 0;
    if (most_frequent(given->tokens + last, given->rows, length, &token)) return -1;
    for (Py_ssize_t row = 0; row < given->rows; row++) {
        const int64_t *tokens = given->tokens + row * length;
        Py_ssize_t run = 0, same = 0;
        while (run < length && tokens[from_start ? run : last - run] == token) run++;
        for (Py_ssize_t at = 0; at < length; at++) same += tokens[at] == token;
        elsewhere |= same > run;
        lengths[row] = run;
        long_ones += run >= LEAST_RUN;
        shortest = run < shortest ? run : shortest;
        longest = run > longest ? run : longest;
        total += run;
    }
    int sound = 2 * long_ones >= given->rows && !elsewhere && longest > shortest;
    return sound ? total : 0;
}

/* How many counted targets are padding after padding, as `padded_targets` in tensor/outputs/places.py; -1 without
   memory. */
static Py_ssize_t padded(const text *given) {
    Py_ssize_t found = 0, places = given->places;
    if (given->padding) {
        for (Py_ssize_t row = 0; row < given->rows; row++)
            for (Py_ssize_t at = 0; at < places; at++) {
                int64_t target = given->targets[row * places + at];
                found += target != given->ignored && target == *given->padding &&
                         given->tokens[row * given->length + at] == *given->padding;
            }
        return found;
    }
    Py_ssize_t *lengths = PyMem_Malloc(sizeof(Py_ssize_t) * (size_t)(given->rows + 1));
    if (!lengths) return -1;
    int from_start = 0;
    Py_ssize_t total = runs(given, from_start, lengths);
    if (!total) total = runs(given, from_start = 1, lengths);
    int64_t alike = 0;
    for (Py_ssize_t row = 0; total > 0 && row < given->rows; row++) {
        Py_ssize_t from = from_start ? 0 : given->length - lengths[row];
        Py_ssize_t to = from_start ? lengths[row] : given->length;
        for (Py_ssize_t at = from; at < to && at < places && total > 0; at++) {
            int64_t target = given->targets[row * places + at];
            if (target == given->ignored) continue;
            if (!found++) alike = target;
            if (target != alike) total = 0; /* padding is followed by nothing else */
        }
    }
    PyMem_Free(lengths);
    return total > 0 ? found : total;
}

/* Of a row: counted targets; those ignored between counted ones though the next token is the ignored one. */
static void look_at_targets(const text *given, Py_ssize_t row, double *counted, double *inner) {
    const int64_t *targets = given->targets + row * given->places, *tokens = given->tokens + row * given->length;
    Py_ssize_t first = 0, last = given->places - 1, number = 0;
    while (first < given->places && targets[first] == given->ignored) first++;
    while (last > first && targets[last] == given->ignored) last--;
    for (Py_ssize_t at = first; at <= last && at < given->places; at++) {
        number += targets[at] != given->ignored;
        *inner += targets[at] == given->ignored && at + 1 < given->length && tokens[at + 1] == given->ignored;
    }
    *counted += (double)number;
}

static void look_at_shift(const text *given, int64_t shift, double *pair) {
    pair[0] = pair[1] = 0;
    if (shift > given->length || shift < -given->length) return;
    Py_ssize_t first = shift < 0 ? (Py_ssize_t)-shift : 0, last = given->length - (Py_ssize_t)shift;
    if (last > given->places) last = given->places;
    for (Py_ssize_t row = 0; row < given->rows; row++) {
        const int64_t *targets = given->targets + row * given->places, *tokens = given->tokens + row * given->length;
        for (Py_ssize_t at = first; at < last; at++) {
            int counted = targets[at] != given->ignored;
            pair[0] += counted && targets[at] == tokens[at + (Py_ssize_t)shift];
            pair[1] += counted;
        }
    }
}

/* token_counts(tokens, targets, rows, ignored, padding, shifts, out): pairs for every shift and two more in `out`. */
PyObject *token_counts(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    static const char *const formats[] = {"lq", "lq", "#", "#", "*lq", "lq", "!d"};
    Py_buffer views[7];
    if (get_all("token_counts", args, given, 7, formats, views)) return NULL;
    Py_ssize_t rows = views[2].len, shifts = entries_of(&views[5]), entries = entries_of(&views[1]), found = 0;
    text all = {views[0].buf, views[1].buf, views[4].obj ? views[4].buf : NULL, rows,
                rows > 0 ? entries_of(&views[0]) / rows : 0, rows > 0 ? entries / rows : 0, views[3].len};
    int fits = rows > 0 && rows * all.length == entries_of(&views[0]) && rows * all.places == entries &&
               all.places <= all.length && entries_of(&views[6]) == 2 * (shifts + 2) &&
               (!all.padding || entries_of(&views[4]) == 1);
    if (fits && (found = padded(&all)) >= 0) {
        double *out = views[6].buf, *last = out + 2 * shifts, counted = 0;
        for (Py_ssize_t at = 0; at < shifts; at++)
            look_at_shift(&all, ((const int64_t *)views[5].buf)[at], out + 2 * at);
        last[2] = 0;
        for (Py_ssize_t row = 0; row < rows; row++) look_at_targets(&all, row, &counted, &last[2]);
        last[0] = (double)found, last[1] = all.padding || found ? counted : 0, last[3] = (double)entries;
    }
    release_all(views, 7);
    if (!fits) return PyErr_Format(PyExc_ValueError, "tokens, targets and what is written are not of %zd rows", rows);
    if (found < 0) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* The first of a row's largest entries; a NaN counts as the largest. */
static Py_ssize_t highest_place(const void *row, Py_ssize_t width, int wide) {
    Py_ssize_t place = 0;
    double most = wide ? ((const double *)row)[0] : ((const float *)row)[0];
    for (Py_ssize_t at = 1; at < width && !isnan(most); at++) {
        double value = wide ? ((const double *)row)[at] : ((const float *)row)[at];
        if (value > most || isnan(value)) most = value, place = at;
    }
    return place;
}

typedef struct {
    const int64_t *tokens, *targets;
    const char *outputs;
    Py_ssize_t rows, length, places, width;
} beginnings;

/* [rows, right, bound] of the first `rows` sequences; `alike` has room for a number of each. */
static void look_at_beginnings(const beginnings *given, int wide, int64_t *alike, double *out) {
    const int64_t *tokens = given->tokens, *targets = given->targets;
    Py_ssize_t length = given->length, places = given->places;
    out[0] = out[1] = out[2] = 0;
    for (Py_ssize_t row = 0; row < given->rows; row++) {
        alike[row] = 0;
        for (Py_ssize_t other = 0; other < given->rows; other++)
            alike[row] += tokens[row * length] == tokens[other * length] &&
                          targets[row * places] == targets[other * places];
    }
    for (Py_ssize_t row = 0; row < given->rows; row++) {
        Py_ssize_t size = 0;
        int64_t most = 0;
        for (Py_ssize_t other = 0; other < given->rows; other++) {
            if (tokens[row * length] != tokens[other * length]) continue;
            size++;
            most = alike[other] > most ? alike[other] : most;
        }
        if (size < 2) continue;
        const char *output = given->outputs + row * places * given->width * (wide ? 8 : 4);
        out[0]++;
        out[1] += highest_place(output, given->width, wide) == targets[row * places];
        out[2] += (double)most / (double)size;
    }
}

/* first_places(tokens, targets, outputs, rows, most, out): as `token_first_places` in tensor/outputs/places.py, of at
   most so many rows. */
PyObject *first_places(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    static const char *const formats[] = {"lq", "lq", "fd", "#", "#", "!d"};
    Py_buffer views[6];
    if (get_all("first_places", args, given, 6, formats, views)) return NULL;
    Py_ssize_t rows = views[3].len, most = views[4].len, targets = entries_of(&views[1]);
    beginnings all = {views[0].buf, views[1].buf, views[2].buf, rows < most ? rows : most,
                      rows > 0 ? entries_of(&views[0]) / rows : 0, rows > 0 ? targets / rows : 0,
                      targets ? entries_of(&views[2]) / targets : 0};
    int fits = all.length > 0 && all.places > 0 && all.width > 0 && most > 0 &&
               rows * all.length == entries_of(&views[0]) && rows * all.places == targets &&
               targets * all.width == entries_of(&views[2]) && entries_of(&views[5]) == 3;
    int64_t *alike = fits ? PyMem_Malloc(sizeof(int64_t) * (size_t)all.rows) : NULL;
    if (alike) look_at_beginnings(&all, format_of(&views[2]) == 'd', alike, views[5].buf);
    PyMem_Free(alike);
    release_all(views, 6);
    if (!fits) return PyErr_Format(PyExc_ValueError, "tokens, targets and outputs are not of %zd rows", rows);
    if (!alike) return PyErr_NoMemory();
    Py_RETURN_NONE;
}
