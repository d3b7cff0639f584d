/* What a backward does to a few parameters, followed without a function of Python's at ordinary steps: in a training loop
   nothing of these is in the caches, and four calls of them take longer than all the rest of such a step.

   What is not ordinary is left to Python: learnscope/session/counting/leaves.py has the same types without a compiler, and
   says what their attributes mean. */

#include "leaves.h"

PyTypeObject *course_type;
static PyTypeObject *leaf_type;
static PyObject *grad, *version, *training;

/* The gradient of a leaf, a new reference; None if it has none. */
INLINE PyObject *gradient_of(const leaf *self) { return PyObject_GetAttr(self->parameter, grad); }

/* How often a tensor has been written; -1 with an exception where that is not counted. */
static Py_ssize_t writes_of(PyObject *tensor) {
    PyObject *number = PyObject_GetAttr(tensor, version);
    Py_ssize_t writes = number ? PyLong_AsSsize_t(number) : -1;
    Py_XDECREF(number);
    return writes;
}

/* Whether all modules, or those that contain them, are in training mode; -1 with an exception. */
static int all_train(PyObject *modules) {
    int trains = 1;
    if (!modules || !PyList_Check(modules)) return trains;
    Py_INCREF(modules); /* a module's own code may give the course another list, or shorten this one */
    for (Py_ssize_t index = 0; trains > 0 && index < PyList_Size(modules); index++) {
        PyObject *pair = PyList_GetItem(modules, index);
        Py_INCREF(pair);
        trains = 0;
        for (Py_ssize_t which = 0; which < 2 && !trains; which++) {
            PyObject *module = PyTuple_GetItem(pair, which), *mode = module ? PyObject_GetAttr(module, training) : NULL;
            trains = mode ? PyObject_IsTrue(mode) : -1;
            Py_XDECREF(mode);
        }
        Py_DECREF(pair);
    }
    Py_DECREF(modules);
    return trains;
}

/* Whether this is the first backward since a step, on a gradient that was cleared, and nobody waits for it. Where that
   cannot be told it is not: `slow` meets the same error, and must not let the training die of it. -1 with an exception
   that is no error, such as KeyboardInterrupt. */
static int is_ordinary(const leaf *self) {
    const course *of = self->of;
    if (!of->ordinary || of->told || self->reached) return 0;
    PyObject *present = gradient_of(self);
    Py_XDECREF(present);
    int ordinary = present != Py_None ? 0 : of->begun ? 1 : all_train(of->modules);
    return forgiven() ? -1 : ordinary > 0;
}

/* A backward is about to add to the gradient. */
static PyObject *leaf_call(PyObject *object, PyObject *args, PyObject *kwargs) {
    leaf *self = (leaf *)object;
    course *of = self->of;
    (void)kwargs;
    of->seen++;
    self->count++;
    if (of->paused || self->slow == Py_None) Py_RETURN_NONE;
    int ordinary = is_ordinary(self);
    if (ordinary < 0) return NULL;
    if (!ordinary) {
        PyObject *gradient = PyTuple_GetItem(args, 0);
        return gradient ? PyObject_CallFunctionObjArgs(self->slow, object, gradient, NULL) : NULL;
    }
    if (!of->begun) of->begun = 1, of->looks = 0;
    self->stale = self->used = 0;
    self->reached = 1;
    self->steps_then = of->any->steps;
    replace(&self->mark, NULL);
    Py_RETURN_NONE;
}

static int course_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((course *)object)->modules);
    Py_VISIT(((course *)object)->any);
    return 0;
}

static int course_clear(PyObject *object) {
    replace(&((course *)object)->modules, NULL);
    return 0;
}

static void course_dealloc(PyObject *object) {
    PyObject_GC_UnTrack(object);
    course_clear(object);
    Py_XDECREF((PyObject *)((course *)object)->any);
    released(object);
}

/* Course(optimizers) */
static PyObject *course_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *any;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!:Course", optimizers_type, &any)) return NULL;
    course *self = (course *)allocated(type);
    if (!self) return NULL;
    Py_INCREF(any);
    self->any = (optimizers *)any;
    return (PyObject *)self;
}

static int leaf_traverse(PyObject *object, visitproc visit, void *arg) {
    leaf *self = (leaf *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->parameter);
    Py_VISIT(self->added);
    Py_VISIT(self->slow);
    Py_VISIT(self->mark);
    Py_VISIT(self->of);
    return 0;
}

/* Only `slow` leads back to here, and nothing is called after it is gone; the rest goes with the leaf. */
static int leaf_clear(PyObject *object) {
    leaf *self = (leaf *)object;
    Py_INCREF(Py_None);
    replace(&self->slow, Py_None);
    replace(&self->mark, NULL);
    return 0;
}

static void leaf_dealloc(PyObject *object) {
    leaf *self = (leaf *)object;
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->parameter);
    Py_XDECREF((PyObject *)self->added);
    Py_XDECREF(self->slow);
    Py_XDECREF(self->mark);
    Py_XDECREF((PyObject *)self->of);
    released(object);
}

/* Leaf(parameter, additions, course, slow) */
static PyObject *leaf_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *parameter, *added, *of, *slow;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OO!O!O:Leaf", &parameter, additions_type, &added, course_type, &of, &slow)) return NULL;
    leaf *self = (leaf *)allocated(type);
    if (!self) return NULL;
    Py_INCREF(parameter), Py_INCREF(added), Py_INCREF(of), Py_INCREF(slow);
    self->parameter = parameter, self->added = (additions *)added, self->of = (course *)of, self->slow = slow;
    self->written = -1;
    return (PyObject *)self;
}

static PyMemberDef course_members[] = {
    MEMBER(any, T_OBJECT, course, READONLY),  MEMBER(seen, T_PYSSIZET, course, 0),
    MEMBER(begun, T_BOOL, course, 0),         MEMBER(looks, T_BOOL, course, 0),
    MEMBER(ordinary, T_BOOL, course, 0),      MEMBER(modules, T_OBJECT, course, 0),
    MEMBER(told, T_BOOL, course, 0),          MEMBER(paused, T_BOOL, course, 0),
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef leaf_members[] = {
    MEMBER(parameter, T_OBJECT, leaf, READONLY), MEMBER(added, T_OBJECT, leaf, READONLY),
    MEMBER(mark, T_OBJECT, leaf, 0),             MEMBER(count, T_PYSSIZET, leaf, 0),
    MEMBER(reached, T_PYSSIZET, leaf, 0),        MEMBER(steps_then, T_PYSSIZET, leaf, 0),
    MEMBER(discarded, T_PYSSIZET, leaf, 0),      MEMBER(written, T_PYSSIZET, leaf, 0),
    MEMBER(stale, T_BOOL, leaf, 0),              MEMBER(used, T_BOOL, leaf, 0),
    MEMBER(nonzero, T_BOOL, leaf, 0),            {NULL, 0, 0, 0, NULL},
};

static PyType_Slot course_slots[] = {
    {Py_tp_new, course_new},         {Py_tp_traverse, course_traverse}, {Py_tp_clear, course_clear},
    {Py_tp_dealloc, course_dealloc}, {Py_tp_members, course_members},   {0, NULL},
};
static PyType_Spec course_spec = {
    "learnscope.native.Course", sizeof(course), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, course_slots};

static PyType_Slot leaf_slots[] = {
    {Py_tp_new, leaf_new},       {Py_tp_call, leaf_call},   {Py_tp_traverse, leaf_traverse},
    {Py_tp_clear, leaf_clear},   {Py_tp_dealloc, leaf_dealloc}, {Py_tp_members, leaf_members},
    {0, NULL},
};
static PyType_Spec leaf_spec = {
    "learnscope.native.Leaf", sizeof(leaf), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, leaf_slots};

/* The leaves of a list, all of this type, each a new reference; NULL with an exception otherwise. */
static leaf *leaf_at(PyObject *leaves, Py_ssize_t index) {
    PyObject *object = PyList_GetItem(leaves, index);
    if (object && Py_TYPE(object) != leaf_type) {
        PyErr_SetString(PyExc_TypeError, "a list of leaves is needed");
        return NULL;
    }
    Py_XINCREF(object);
    return (leaf *)object;
}

/* Where an inference tensor counts no writes, Python goes on: 0; -1 with any other exception. */
static int left_to_python(void) {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_RuntimeError)) return -1;
    PyErr_Clear();
    return 0;
}

/* Asks every leaf, or tells it; what is not 1 of one ends it. -1 with an exception. */
static int of_all(PyObject *leaves, int (*action)(leaf *), int of_none) {
    int answer = of_none;
    for (Py_ssize_t index = 0; index < PyList_Size(leaves); index++) {
        leaf *self = leaf_at(leaves, index);
        answer = self ? action(self) : -1;
        Py_XDECREF((PyObject *)self);
        if (answer <= 0) break;
    }
    return answer;
}

static int was_ordinary(leaf *self) {
    if (!self->reached || self->stale) return 0;
    PyObject *present = gradient_of(self);
    Py_XDECREF(present);
    if (!present || present == Py_None) return present ? 0 : -1;
    if (self->written < 0) return 1;
    Py_ssize_t writes = writes_of(self->parameter);
    return writes < 0 ? left_to_python() : writes == self->written;
}

/* The gradient as it stands after a step, (weak reference, writes); NULL with an exception, or if there is none. */
static PyObject *mark_of(PyObject *gradient) {
    Py_ssize_t writes = writes_of(gradient);
    PyObject *reference = writes < 0 ? NULL : PyWeakref_NewRef(gradient, NULL);
    PyObject *mark = reference ? Py_BuildValue("(On)", reference, writes) : NULL;
    Py_XDECREF(reference);
    return mark;
}

static int has_stepped(leaf *self) {
    PyObject *gradient = gradient_of(self);
    if (!gradient) return -1;
    int there = gradient != Py_None;
    PyObject *mark = there ? mark_of(gradient) : NULL;
    Py_DECREF(gradient);
    Py_ssize_t writes = there && !mark ? -1 : writes_of(self->parameter);
    if (writes < 0) {
        Py_XDECREF(mark);
        return left_to_python();
    }
    replace(&self->mark, mark);
    self->written = writes;
    self->used = there != 0;
    self->stale = self->nonzero = 0;
    self->reached = self->added->number = 0;
    return 1;
}

int all_ordinary(PyObject *leaves) { return of_all(leaves, was_ordinary, 0); }
int all_stepped(PyObject *leaves) { return of_all(leaves, has_stepped, 1); }

Py_ssize_t taken_counts(PyObject *leaves) {
    Py_ssize_t most = 0;
    for (Py_ssize_t index = 0; index < PyList_Size(leaves); index++) {
        leaf *self = leaf_at(leaves, index);
        if (!self) return -1;
        if (self->count > most) most = self->count;
        self->count = 0;
        Py_DECREF((PyObject *)self);
    }
    return most;
}

static PyObject *answered(const char *name, int (*question)(PyObject *), PyObject *const *args, Py_ssize_t given) {
    if (given != 1 || !PyList_Check(args[0])) return PyErr_Format(PyExc_TypeError, "%s takes a list", name);
    int answer = question(args[0]);
    return answer < 0 ? NULL : PyBool_FromLong(answer);
}

/* leaves_ordinary(leaves) */
PyObject *leaves_ordinary(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    return answered("leaves_ordinary", all_ordinary, args, given);
}

/* leaves_stepped(leaves) */
PyObject *leaves_stepped(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    return answered("leaves_stepped", all_stepped, args, given);
}

/* Makes the types of a module that is being imported. There is one of each: imported anew, the module has the same
   ones, as leaves of before are still at work; another interpreter of the process does without. */
int add_leaves(PyObject *module) {
    static int64_t owner;
    int64_t interpreter = PyInterpreterState_GetID(PyInterpreterState_Get());
    if (!leaf_type) {
        owner = interpreter;
        grad = PyUnicode_InternFromString("grad"), version = PyUnicode_InternFromString("_version");
        training = PyUnicode_InternFromString("training");
        if (!grad || !version || !training) return -1;
    }
    if (owner != interpreter) {
        PyErr_SetString(PyExc_ImportError, "kernels are for one interpreter of a process");
        return -1;
    }
    if (add_counts(module)) return -1;
    if (add_type(module, "Course", &course_type, &course_spec)) return -1;
    if (add_type(module, "Leaf", &leaf_type, &leaf_spec)) return -1;
    return add_quiet(module);
}
