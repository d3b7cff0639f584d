/* Hooks that do nothing but count: backward passes that come by a parameter, and steps of any optimizer. */

#include "leaves.h"

PyTypeObject *additions_type, *optimizers_type;

Py_ssize_t taken_numbers(PyObject *arrivals) {
    Py_ssize_t most = 0;
    for (Py_ssize_t index = 0; index < PyList_Size(arrivals); index++) {
        PyObject *object = PyList_GetItem(arrivals, index);
        if (!object || Py_TYPE(object) != additions_type) {
            PyErr_SetString(PyExc_TypeError, "a list of additions is needed");
            return -1;
        }
        additions *each = (additions *)object;
        if (each->number > most) most = each->number;
        each->number = 0;
    }
    return most;
}

/* Of a type that holds nothing. */
static void plain_dealloc(PyObject *object) { released(object); }

static PyObject *plain_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args, (void)kwargs;
    return allocated(type);
}

static PyObject *additions_call(PyObject *object, PyObject *args, PyObject *kwargs) {
    (void)args, (void)kwargs;
    ((additions *)object)->number++;
    Py_RETURN_NONE;
}

static PyObject *optimizers_begins(PyObject *object, PyObject *const *args, Py_ssize_t given) {
    (void)args, (void)given;
    ((optimizers *)object)->inside = 1;
    Py_RETURN_NONE;
}

static PyObject *optimizers_stepped(PyObject *object, PyObject *const *args, Py_ssize_t given) {
    (void)args, (void)given;
    ((optimizers *)object)->inside = 0;
    ((optimizers *)object)->steps++;
    Py_RETURN_NONE;
}

static PyMemberDef additions_members[] = {MEMBER(number, T_PYSSIZET, additions, 0), {NULL, 0, 0, 0, NULL}};
static PyMemberDef optimizers_members[] = {
    MEMBER(steps, T_PYSSIZET, optimizers, 0), MEMBER(inside, T_BOOL, optimizers, 0), {NULL, 0, 0, 0, NULL}};
static PyMethodDef optimizers_methods[] = {
    {"begins", (PyCFunction)(void (*)(void))optimizers_begins, METH_FASTCALL, NULL},
    {"stepped", (PyCFunction)(void (*)(void))optimizers_stepped, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot additions_slots[] = {
    {Py_tp_new, plain_new},         {Py_tp_dealloc, plain_dealloc}, {Py_tp_call, additions_call},
    {Py_tp_members, additions_members}, {0, NULL},
};
static PyType_Spec additions_spec = {
    "learnscope.native.Additions", sizeof(additions), 0, Py_TPFLAGS_DEFAULT, additions_slots};
static PyType_Slot optimizers_slots[] = {
    {Py_tp_new, plain_new},         {Py_tp_dealloc, plain_dealloc}, {Py_tp_methods, optimizers_methods},
    {Py_tp_members, optimizers_members}, {0, NULL},
};
static PyType_Spec optimizers_spec = {
    "learnscope.native.Optimizers", sizeof(optimizers), 0, Py_TPFLAGS_DEFAULT, optimizers_slots};

int add_counts(PyObject *module) {
    if (add_type(module, "Additions", &additions_type, &additions_spec)) return -1;
    return add_type(module, "Optimizers", &optimizers_type, &optimizers_spec);
}
