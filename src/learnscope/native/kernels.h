/* What the kernels share: numbers side by side, work for several threads, and arrays that Python hands over.

Sums are taken in float64 over a fixed number of lanes and pieces, and added up in a fixed order: their bits depend
neither on the processor nor on the number of threads. */

#ifndef LEARNSCOPE_KERNELS_H
#define LEARNSCOPE_KERNELS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#if !defined(__GNUC__)
#error "the kernels need the vector types of GCC or Clang; without them learnscope uses torch and NumPy"
#endif

/* A number of these sources, made by `make names`: Python leaves a build of others alone, whose functions may take
   other arguments. */
#define SOURCES 0x65833A41

#define INLINE static inline __attribute__((always_inline))

#define LANES 16
#define PIECE 65536 /* entries of one job, which a core's cache holds */
#define ALONE (1 << 20) /* entries below which starting threads, or letting other threads run, is not worth it */

/* As wide as one register; sixteen lanes are HALVES of floats and QUARTERS of doubles. */
#if defined(__AVX512F__)
#define REGISTER 64
#elif defined(__AVX__)
#define REGISTER 32
#else
#define REGISTER 16
#endif
#define HALVES (LANES * 4 / REGISTER)
#define QUARTERS (LANES * 8 / REGISTER)
#define IN_HALF (LANES / HALVES)
#define IN_QUARTER (LANES / QUARTERS)
typedef float floats __attribute__((vector_size(REGISTER), aligned(4)));
typedef int32_t ints __attribute__((vector_size(REGISTER), aligned(4)));
typedef double doubles __attribute__((vector_size(REGISTER), aligned(8)));
typedef float narrow __attribute__((vector_size(REGISTER / 2), aligned(4)));
#define UNROLLED _Pragma("GCC unroll 4") for

/* Asks for what lies so many bytes further, as a number: there need not be anything. */
#define FETCH(from, bytes, written) __builtin_prefetch((const void *)((uintptr_t)(from) + (bytes)), written, 2)

/* The floats of a quarter as doubles. */
INLINE doubles widened(const float *values) { return __builtin_convertvector(*(const narrow *)values, doubles); }

/* `yes` where the mask is set, `no` elsewhere. */
INLINE floats pick(ints mask, floats yes, floats no) {
    return (floats)(((ints)yes & mask) | ((ints)no & ~mask));
}

/* The larger of each two; the second if the first is NaN. */
INLINE floats larger(floats first, floats second) {
#if defined(__AVX512F__)
    return (floats)_mm512_max_ps((__m512)first, (__m512)second);
#elif defined(__AVX__)
    return (floats)_mm256_max_ps((__m256)first, (__m256)second);
#else
    return pick(first > second, first, second);
#endif
}

/* Whether any lane is not 0. */
INLINE int any(ints lanes) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes) != 0;
#elif defined(__AVX__)
    return !_mm256_testz_si256((__m256i)lanes, (__m256i)lanes);
#else
    int32_t found = 0;
    for (int lane = 0; lane < IN_HALF; lane++) found |= lanes[lane];
    return found != 0;
#endif
}

INLINE double sum_of(const double *lanes) {
    double total = 0;
    for (int lane = 0; lane < LANES; lane++) total += lanes[lane];
    return total;
}

/* Runs job(context, 0) … job(context, jobs - 1), on several threads if that is asked for. */
typedef void (*job_function)(void *context, Py_ssize_t job);
void in_parallel(int threads, Py_ssize_t jobs, job_function job, void *context);

/* A buffer without gaps of items of one of these formats ("fd": float32 or float64); -1 with an exception otherwise. */
int get_array(PyObject *object, Py_buffer *view, const char *formats, int writable);
INLINE char format_of(const Py_buffer *view) { return view->format ? view->format[view->format[0] == '<'] : 'B'; }
INLINE Py_ssize_t entries_of(const Py_buffer *view) { return view->itemsize ? view->len / view->itemsize : 0; }

/* All arrays of a sequence; NULL with an exception if one cannot be read. */
Py_buffer *get_arrays(PyObject *sequence, Py_ssize_t *count, const char *formats);
void release_arrays(Py_buffer *views, Py_ssize_t count);

/* As many arguments as there are formats: of arrays as above, "V" for rows of any kind, "#" for a whole number, which
   is the view's `len`; "!" before it for one that is written, "*" for one that may be None. -1 with an exception. */
int get_all(const char *name, PyObject *const *args, Py_ssize_t given, int count, const char *const *formats,
            Py_buffer *views);
void release_all(Py_buffer *views, int count);

PyObject *best_build(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *class_counts(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *change_sums(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *count_changed(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *cut_changed(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *divergence_sums(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *exchange_entries(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *first_places(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *gradient_sums(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *bytes_at(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *copy_memory(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *example_scores(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *ledger_find(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *group_sums(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *numbers_at(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *output_spread(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *text_numbers(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *token_counts(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *ledger_totals(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *ledger_present(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *leaves_ordinary(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *leaves_stepped(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
