/* What hooks of a training loop share: how it goes on, and what becomes of a few gradients. */

#ifndef LEARNSCOPE_LEAVES_H
#define LEARNSCOPE_LEAVES_H

#include "kernels.h"

#include <stddef.h>
#include <structmember.h>

#define MEMBER(name, type, of, flags) {#name, type, offsetof(of, name), flags, NULL}

/* Counts its calls: a hook that holds nothing, as torch hides hooks from the garbage collector. */
typedef struct {
    PyObject_HEAD
    Py_ssize_t number;
} additions;

/* Steps of any optimizer of the process. */
typedef struct {
    PyObject_HEAD
    Py_ssize_t steps;
    char inside;
} optimizers;

typedef struct {
    PyObject_HEAD
    PyObject *modules;
    optimizers *any;
    Py_ssize_t seen;
    char begun, looks, ordinary, told, paused;
} course;

typedef struct {
    PyObject_HEAD
    PyObject *parameter, *slow, *mark;
    additions *added;
    course *of;
    Py_ssize_t count, reached, steps_then, discarded, written;
    char stale, used, nonzero;
} leaf;

extern PyTypeObject *additions_type, *optimizers_type, *course_type;

/* Each of a list of leaves; 1, 0, or -1 with an exception. */
int all_ordinary(PyObject *leaves);
int all_stepped(PyObject *leaves);

/* The largest count of a list of leaves, and of a list of additions, which begin again; -1 with an exception. */
Py_ssize_t taken_counts(PyObject *leaves);
Py_ssize_t taken_numbers(PyObject *arrivals);

INLINE void replace(PyObject **place, PyObject *by) {
    PyObject *before = *place;
    *place = by;
    Py_XDECREF(before);
}

/* Frees an object of a type that was made here. */
INLINE void released(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

INLINE PyObject *allocated(PyTypeObject *type) { return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); }

/* Adds a type to a module, which is made once. */
INLINE int add_type(PyObject *module, const char *name, PyTypeObject **type, PyType_Spec *spec) {
    if (!*type && !(*type = (PyTypeObject *)PyType_FromSpec(spec))) return -1;
    return PyModule_AddObjectRef(module, name, (PyObject *)*type);
}

/* Clears an error; -1 if what has been raised is none, such as KeyboardInterrupt. */
INLINE int forgiven(void) {
    if (!PyErr_Occurred()) return 0;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Clear();
    return 0;
}

int add_counts(PyObject *module);
int add_leaves(PyObject *module);
int add_quiet(PyObject *module);

#endif
