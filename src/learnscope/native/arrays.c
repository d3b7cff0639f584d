/* Arrays that Python hands over, and work for several threads. */

#include "kernels.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define HAVE_THREADS 1
#endif

#define MOST_THREADS 64
#define LOWEST 65536 /* no program has memory below; a tensor whose memory was freed may point there */

int get_array(PyObject *object, Py_buffer *view, const char *formats, int writable) {
    int flags = PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, view, flags)) return -1;
    char format = format_of(view);
    const char *whole = view->format ? view->format : "B";
    if (!format || !strchr(formats, format) || strlen(whole) > (whole[0] == '<' ? 2 : 1)) {
        PyErr_Format(PyExc_TypeError, "an array of format %s, where one of %s is needed", whole, formats);
        PyBuffer_Release(view);
        return -1;
    }
    return 0;
}

static int get_plain(PyObject *object, Py_buffer *view, const char *formats) {
    return get_array(object, view, formats, 0);
}

/* (address, entries, bytes of each) of memory that the caller holds, as a buffer that nobody has to release. */
static int get_place(PyObject *place, Py_buffer *view, const char *formats) {
    Py_ssize_t numbers[3];
    for (int index = 0; index < 3; index++) {
        PyObject *number = PyTuple_GetItem(place, index);
        numbers[index] = number ? PyLong_AsSsize_t(number) : -1;
        if (numbers[index] == -1 && PyErr_Occurred()) return -1;
    }
    static char single[] = "f", wide[] = "d";
    static double nothing;
    Py_ssize_t address = numbers[0], entries = numbers[1], size = numbers[2];
    char *format = size == 4 ? single : size == 8 ? wide : NULL;
    int is_memory = entries == 0 || (address >= LOWEST && address % size == 0);
    if (!format || !strchr(formats, *format) || entries < 0 || entries > PY_SSIZE_T_MAX / 8 || !is_memory) {
        PyErr_SetString(PyExc_TypeError, "no place of numbers of this kind");
        return -1;
    }
    memset(view, 0, sizeof *view);
    view->buf = entries ? (void *)address : &nothing;
    view->len = entries * size, view->itemsize = size, view->format = format, view->ndim = 1;
    return 0;
}

Py_buffer *get_arrays(PyObject *sequence, Py_ssize_t *count, const char *formats) {
    if (!PyList_Check(sequence)) {
        PyErr_SetString(PyExc_TypeError, "a list of arrays is needed");
        return NULL;
    }
    *count = PyList_Size(sequence);
    Py_buffer *views = PyMem_Malloc(sizeof(Py_buffer) * (size_t)(*count ? *count : 1));
    if (!views) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t index = 0; index < *count; index++) {
        PyObject *item = PyList_GetItem(sequence, index);
        int is_place = item && PyTuple_Check(item) && PyTuple_Size(item) == 3;
        if (!item || (is_place ? get_place : get_plain)(item, &views[index], formats)) {
            release_arrays(views, index);
            return NULL;
        }
    }
    return views;
}

void release_arrays(Py_buffer *views, Py_ssize_t count) {
    for (Py_ssize_t index = 0; index < count; index++) PyBuffer_Release(&views[index]);
    PyMem_Free(views);
}

typedef struct {
    job_function job;
    void *context;
    Py_ssize_t jobs, next;
} work;

static void *do_jobs(void *argument) {
    work *shared = argument;
    for (;;) {
        Py_ssize_t job = __atomic_fetch_add(&shared->next, 1, __ATOMIC_RELAXED);
        if (job >= shared->jobs) return NULL;
        shared->job(shared->context, job);
    }
}

void in_parallel(int threads, Py_ssize_t jobs, job_function job, void *context) {
    work shared = {job, context, jobs, 0};
#ifdef HAVE_THREADS
    pthread_t started[MOST_THREADS];
    int others = 0;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    /* where no thread can be started, this one does all of the work */
    while (others + 1 < threads && !pthread_create(&started[others], NULL, do_jobs, &shared)) others++;
    do_jobs(&shared);
    while (others > 0) pthread_join(started[--others], NULL);
#else
    (void)threads;
    do_jobs(&shared);
#endif
}
