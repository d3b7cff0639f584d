/* The functions that Python sees; what each does is said in __init__.py.

The same sources are compiled twice, for every processor and for those with AVX2, under two names. */

#include "kernels.h"

#ifndef MODULE
#define MODULE _kernels
#endif
#define JOINED(a, b) a##b
#define INIT(name) JOINED(PyInit_, name)
#define QUOTED(name) #name
#define NAME(name) QUOTED(name)

PyObject *has_avx2(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module, (void)args, (void)count;
#if defined(__x86_64__)
    return PyBool_FromLong(__builtin_cpu_supports("avx2"));
#else
    Py_RETURN_FALSE;
#endif
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {
    FUNCTION(has_avx2),
    FUNCTION(gradient_sums),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = NAME(MODULE), .m_size = 0, .m_methods = functions};

PyMODINIT_FUNC INIT(MODULE)(void) { return PyModuleDef_Init(&definition); }
