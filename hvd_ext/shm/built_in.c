/* A planned call as a built-in function of Python's: it needs no frame of Python's.
 *
 * There is no Python.h here, so that one build serves every Python: all names are in the stable
 * ABI, and the process that loads this has them. */
#include <stddef.h>

typedef struct object object; /* any of Python's */
extern object _Py_NoneStruct;
extern void Py_IncRef(object *);
extern void Py_DecRef(object *);
extern object *PyTuple_GetItem(object *, ptrdiff_t);
extern char *PyBytes_AsString(object *);
extern ptrdiff_t PyList_Size(object *);
extern object *PyLong_FromLong(long);
extern object *PyObject_CallFunctionObjArgs(object *, ...);
extern void *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *);

/* As in c_call.py. */
struct call {
    int (*run)(void *);
    void *argument;
    object *listeners; /* a list: who is given each exchange */
};

/* `self` is a tuple: the bytes of a call, and a function. That is called where somebody listens,
 * with 0, or where the call gave a code, with the code. */
object *built_in(object *self, object *unused) {
    (void)unused;
    const struct call *call = (const struct call *)PyBytes_AsString(PyTuple_GetItem(self, 0));
    int code = 0;
    if (PyList_Size(call->listeners) == 0) {
        void *thread = PyEval_SaveThread();
        code = call->run(call->argument);
        PyEval_RestoreThread(thread);
        if (code == 0) {
            Py_IncRef(&_Py_NoneStruct);
            return &_Py_NoneStruct;
        }
    }
    object *number = PyLong_FromLong(code);
    if (number == NULL) return NULL;
    object *result = PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, 1), number, NULL);
    Py_DecRef(number);
    return result;
}
