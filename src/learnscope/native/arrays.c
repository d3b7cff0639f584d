/* Arrays that Python hands over, and work for several threads. */

#include "kernels.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define HAVE_THREADS 1
#endif

#define MOST_THREADS 64

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
        if (!item || get_array(item, &views[index], formats, 0)) {
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
