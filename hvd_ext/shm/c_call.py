"""A function of C with its one argument, to be called again and again."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from hvd_ext.events import LISTENERS

_NO_ARGUMENTS = 0x4  # METH_NOARGS


class CCall(functools.partial[int]):
    """A call that returns the result of a C function, an int.

    ctypes releases the GIL for it.
    """

    _argument: ctypes.Structure
    _kept: tuple[object, ...]

    def __new__(cls, function: Any, argument: ctypes.Structure, *kept: object) -> CCall:
        """Keep a function, its argument, and the objects that the argument points to."""
        self = super().__new__(cls, function, ctypes.byref(argument))
        self._argument, self._kept = argument, kept
        return self

    def built_in(self, otherwise: Callable[[int], object]) -> Callable[[], None]:
        """Return this call without a Python frame, which takes as long as a short exchange.

        Args:
            otherwise: called with the result if that is not 0; and in place of the function, with
                0, if anything listens to exchanges.
        """
        function: Any = self.func
        call = _Call(
            ctypes.cast(function, ctypes.c_void_p),
            ctypes.addressof(self._argument),
            id(LISTENERS),
        )
        made = _make()(ctypes.addressof(_method()), (bytes(call), otherwise, self), None)
        return cast("Callable[[], None]", made)


class _Call(ctypes.Structure):
    _fields_ = (
        ("run", ctypes.c_void_p),
        ("argument", ctypes.c_void_p),
        ("listeners", ctypes.c_void_p),
    )


class _Method(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@functools.cache
def _method() -> _Method:
    library = ctypes.CDLL(str(Path(__file__).with_name("libbuilt_in.so")))
    function = ctypes.cast(library.built_in, ctypes.c_void_p).value
    return _Method(b"planned", function, _NO_ARGUMENTS, b"Reduce the buffer.")


@functools.cache
def _make() -> Any:
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    make.restype = ctypes.py_object
    return make
