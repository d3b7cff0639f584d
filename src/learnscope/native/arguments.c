/* The arguments of kernels that take many: arrays and whole numbers, each as a text says. */

#include "kernels.h"

static int get_one(PyObject *object, Py_buffer *view, const char *format) {
    int writable = format[0] == '!', optional = format[writable] == '*';
    format += writable + optional;
    memset(view, 0, sizeof *view);
    if (format[0] == '#') {
        view->len = PyNumber_AsSsize_t(object, PyExc_OverflowError); /* also one of NumPy */
        return view->len == -1 && PyErr_Occurred() ? -1 : 0;
    }
    if (optional && object == Py_None) return 0;
    if (format[0] == 'V') return PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0));
    if (get_array(object, view, format, writable)) return -1;
    if ((strchr(format, 'q') && view->itemsize != 8) || !PyBuffer_IsContiguous(view, 'C')) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_TypeError, "an array of whole numbers of 64 bits, or one row after another, is needed");
        return -1;
    }
    return 0;
}

int get_all(const char *name, PyObject *const *args, Py_ssize_t given, int count, const char *const *formats,
            Py_buffer *views) {
    if (given != count) {
        PyErr_Format(PyExc_TypeError, "%s takes %d arguments, not %zd", name, count, given);
        return -1;
    }
    for (int index = 0; index < count; index++) {
        if (get_one(args[index], &views[index], formats[index])) {
            release_all(views, index);
            return -1;
        }
    }
    return 0;
}

void release_all(Py_buffer *views, int count) {
    for (int index = 0; index < count; index++)
        if (views[index].obj) PyBuffer_Release(&views[index]);
}
