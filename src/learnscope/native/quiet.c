/* Training steps at which nothing is measured, as nearly all are: an optimizer's hooks count them, and call no function of
   Python's. What is not as at most steps is left to Python: learnscope/session/counting/quiet.py has the same type without a
   compiler, and says what its attributes mean. */

#include "leaves.h"

#include <time.h>

typedef struct {
    PyObject_HEAD
    PyObject *leaves, *arrivals, *slow_before, *slow_after, *look, *unmarked;
    course *of;
    Py_ssize_t room, pending, passes, last, number;
    double looked, apart;
    char quiet, eventful, counts, taken;
} quiet_steps;

static PyTypeObject *quiet_type;
static PyObject *attributes, *found_inf;

static double seconds(void) {
    struct timespec now;
    return timespec_get(&now, TIME_UTC) ? (double)now.tv_sec + 1e-9 * (double)now.tv_nsec : -1.0;
}

/* Whether gradients are looked at in a step of this number. */
static int is_due(Py_ssize_t number) { return (number & (number - 1)) == 0 || number % 64 == 0; }

/* Whether a fused GradScaler may let the step do nothing. */
static int is_scaled(PyObject *optimizer) {
    PyObject *own = PyObject_GetAttr(optimizer, attributes);
    int scaled = !own || !PyDict_Check(own) || PyDict_Contains(own, found_inf) != 0;
    Py_XDECREF(own);
    return scaled;
}

static int is_quiet(const quiet_steps *self, PyObject *const *args, Py_ssize_t given) {
    if (!self->quiet || self->eventful || self->room <= 0 || given != 3) return 0;
    if (!PyTuple_Check(args[1]) || PyTuple_Size(args[1]) != 1) return 0; /* no closure */
    if (!PyDict_Check(args[2]) || PyDict_Size(args[2])) return 0;
    if (self->counts && (self->of->looks || all_ordinary(self->leaves) <= 0)) return 0;
    return !is_scaled(args[0]);
}

static PyObject *passed_on(PyObject *to, PyObject *const *args, Py_ssize_t given) {
    if (!to || to == Py_None) Py_RETURN_NONE; /* the session is gone */
    if (given != 3) return PyErr_Format(PyExc_TypeError, "a hook takes an optimizer and its arguments");
    Py_INCREF(to); /* it may close the session */
    PyObject *result = PyObject_CallFunctionObjArgs(to, args[0], args[1], args[2], NULL);
    Py_DECREF(to);
    return result;
}

/* before(optimizer, args, kwargs): a hook before the optimizer's steps. */
static PyObject *quiet_before(PyObject *object, PyObject *const *args, Py_ssize_t given) {
    quiet_steps *self = (quiet_steps *)object;
    self->taken = (char)is_quiet(self, args, given);
    if (self->taken) Py_RETURN_NONE;
    if (forgiven()) return NULL; /* Python meets the same error, and does not let the training die of it */
    return passed_on(self->slow_before, args, given);
}

/* after(optimizer, args, kwargs): a hook after the optimizer's steps. */
static PyObject *quiet_after(PyObject *object, PyObject *const *args, Py_ssize_t given) {
    quiet_steps *self = (quiet_steps *)object;
    if (!self->taken) return passed_on(self->slow_after, args, given);
    self->taken = 0;
    if (self->counts && all_stepped(self->leaves) <= 0) {
        if (forgiven()) return NULL;
        PyObject *done = PyObject_CallFunctionObjArgs(self->unmarked, self->leaves, NULL);
        if (!done) return NULL;
        Py_DECREF(done);
    }
    Py_ssize_t by_leaves = taken_counts(self->leaves), by_arrivals = taken_numbers(self->arrivals);
    if (by_leaves < 0 || by_arrivals < 0) return NULL;
    self->last = by_leaves > by_arrivals ? by_leaves : by_arrivals;
    self->passes += self->last;
    self->pending++, self->number++, self->room--;
    self->of->seen = 0, self->of->begun = 0;
    self->of->ordinary = !is_due(self->number + 1);
    double since = seconds() - self->looked;
    if (self->room > 0 && since >= 0 && since < self->apart) Py_RETURN_NONE;
    PyObject *look = self->look;
    if (!look || look == Py_None) Py_RETURN_NONE;
    Py_INCREF(look);
    PyObject *result = PyObject_CallObject(look, NULL);
    Py_DECREF(look);
    return result;
}

static int quiet_traverse(PyObject *object, visitproc visit, void *arg) {
    quiet_steps *self = (quiet_steps *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->leaves);
    Py_VISIT(self->arrivals);
    Py_VISIT(self->slow_before);
    Py_VISIT(self->slow_after);
    Py_VISIT(self->look);
    Py_VISIT(self->unmarked);
    Py_VISIT(self->of);
    return 0;
}

/* The hooks do nothing then. */
static int quiet_clear(PyObject *object) {
    quiet_steps *self = (quiet_steps *)object;
    self->quiet = self->taken = 0;
    replace(&self->slow_before, NULL);
    replace(&self->slow_after, NULL);
    replace(&self->look, NULL);
    return 0;
}

static void quiet_dealloc(PyObject *object) {
    quiet_steps *self = (quiet_steps *)object;
    PyObject_GC_UnTrack(object);
    quiet_clear(object);
    Py_XDECREF(self->leaves);
    Py_XDECREF(self->arrivals);
    Py_XDECREF(self->unmarked);
    Py_XDECREF((PyObject *)self->of);
    released(object);
}

/* Quiet(course, leaves, arrivals, counts, unmarked) */
static PyObject *quiet_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *of, *leaves, *arrivals, *unmarked;
    int counts;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!O!O!pO:Quiet", course_type, &of, &PyList_Type, &leaves, &PyList_Type, &arrivals, &counts,
                          &unmarked))
        return NULL;
    quiet_steps *self = (quiet_steps *)allocated(type);
    if (!self) return NULL;
    Py_INCREF(of), Py_INCREF(leaves), Py_INCREF(arrivals), Py_INCREF(unmarked);
    self->of = (course *)of, self->leaves = leaves, self->arrivals = arrivals, self->unmarked = unmarked;
    self->counts = (char)counts;
    return (PyObject *)self;
}

static PyMemberDef quiet_members[] = {
    MEMBER(slow_before, T_OBJECT, quiet_steps, 0), MEMBER(slow_after, T_OBJECT, quiet_steps, 0),
    MEMBER(look, T_OBJECT, quiet_steps, 0),        MEMBER(room, T_PYSSIZET, quiet_steps, 0),
    MEMBER(pending, T_PYSSIZET, quiet_steps, 0),   MEMBER(passes, T_PYSSIZET, quiet_steps, 0),
    MEMBER(last, T_PYSSIZET, quiet_steps, 0),      MEMBER(number, T_PYSSIZET, quiet_steps, 0),
    MEMBER(looked, T_DOUBLE, quiet_steps, 0),      MEMBER(apart, T_DOUBLE, quiet_steps, 0),
    MEMBER(quiet, T_BOOL, quiet_steps, 0),         MEMBER(eventful, T_BOOL, quiet_steps, 0),
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef quiet_methods[] = {
    {"before", (PyCFunction)(void (*)(void))quiet_before, METH_FASTCALL, NULL},
    {"after", (PyCFunction)(void (*)(void))quiet_after, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot quiet_slots[] = {
    {Py_tp_new, quiet_new},         {Py_tp_traverse, quiet_traverse}, {Py_tp_clear, quiet_clear},
    {Py_tp_dealloc, quiet_dealloc}, {Py_tp_members, quiet_members},   {Py_tp_methods, quiet_methods},
    {0, NULL},
};
static PyType_Spec quiet_spec = {
    "learnscope.native.Quiet", sizeof(quiet_steps), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, quiet_slots};

/* Makes the type of a module that is being imported. */
int add_quiet(PyObject *module) {
    attributes = PyUnicode_InternFromString("__dict__"), found_inf = PyUnicode_InternFromString("found_inf");
    return !attributes || !found_inf ? -1 : add_type(module, "Quiet", &quiet_type, &quiet_spec);
}
