/* The functions that Python sees; what each does is said in __init__.py.

The same sources are compiled for every processor, for those with AVX2 and for those with AVX-512, under three names. */

#include "leaves.h"

#ifndef MODULE
#define MODULE _kernels
#endif
#define JOINED(a, b) a##b
#define INIT(name) JOINED(PyInit_, name)
#define QUOTED(name) #name
#define NAME(name) QUOTED(name)

PyObject *best_build(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module, (void)args, (void)count;
    const char *name = "_kernels";
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) name = "_kernels_avx2";
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) name = "_kernels_avx512";
#endif
    return PyUnicode_FromString(name);
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {
    FUNCTION(best_build),
    FUNCTION(change_sums),
    FUNCTION(class_counts),
    FUNCTION(count_changed),
    FUNCTION(cut_changed),
    FUNCTION(divergence_sums),
    FUNCTION(exchange_entries),
    FUNCTION(first_places),
    FUNCTION(gradient_sums),
    FUNCTION(bytes_at),
    FUNCTION(copy_memory),
    FUNCTION(example_scores),
    FUNCTION(ledger_find),
    FUNCTION(group_sums),
    FUNCTION(numbers_at),
    FUNCTION(output_spread),
    FUNCTION(text_numbers),
    FUNCTION(token_counts),
    FUNCTION(ledger_present),
    FUNCTION(ledger_totals),
    FUNCTION(leaves_ordinary),
    FUNCTION(leaves_stepped),
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module) {
    if (PyModule_AddIntConstant(module, "SOURCES", SOURCES)) return -1;
    return add_leaves(module);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)fill}, {0, NULL}};

static struct PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT,
                                        .m_name = NAME(MODULE),
                                        .m_size = 0,
                                        .m_methods = functions,
                                        .m_slots = slots};

PyMODINIT_FUNC INIT(MODULE)(void) { return PyModuleDef_Init(&definition); }
