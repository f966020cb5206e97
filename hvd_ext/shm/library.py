"""The compiled part of this package."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from hvd_ext.errors import UsageError
from hvd_ext.shm.regions import WindowError
from hvd_ext.variables import KERNELS

# The forms of its kernels (scalar, AVX2, ...), in the order of forms.h.
FORMS = ("scalar", "avx2", "avx512")


@functools.cache
def load_library() -> ctypes.CDLL:
    """Load the library, with the form of its kernels that HVD_EXT_KERNELS names.

    Raises:
        WindowError: it cannot be loaded.
        UsageError: this CPU does not have that form.
    """
    path = Path(__file__).with_name("libwindow.so")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise WindowError(
            f"{path.name} cannot be loaded ({error}): install hvd-ext again"
        ) from None
    address, ticket, timeout_s = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_double
    library.window_ready.argtypes = [address, ticket]
    library.window_ready.restype = None
    library.window_meet.argtypes = [address, ticket, timeout_s]
    library.window_reduce.argtypes = [address, address, ticket, timeout_s]
    library.window_publish.argtypes = [address, address]
    library.window_publish.restype = None
    library.window_done.argtypes = [address, ticket]
    library.window_done.restype = None
    library.window_finish.argtypes = [address, ticket, timeout_s]
    library.window_collective_of.argtypes = [address, ctypes.c_int, ticket, address]
    library.window_fail.argtypes = [address, ticket, ticket, ctypes.c_char_p]
    library.window_why.argtypes = [address, ctypes.c_int, address]
    library.window_collective_of.restype = library.window_fail.restype = None
    library.window_why.restype = None
    library.copy_each.argtypes = [address, address, address, ctypes.c_uint64]
    library.digest_each.argtypes = [address, address, ctypes.c_uint64, address]
    library.copy_each.restype = library.digest_each.restype = None
    library.flag_raise.argtypes = library.flag_is_raised.argtypes = [address]
    library.word_write.argtypes = [address, ctypes.c_uint64]
    library.word_read.argtypes = [address]
    library.word_read.restype = ctypes.c_uint64
    library.flag_raise.restype = library.word_write.restype = None
    use_kernels(library, KERNELS.read())
    return library


def use_kernels(library: ctypes.CDLL, form: str | None) -> None:
    """Make a library use one of FORMS; None leaves the widest that this CPU has.

    Raises:
        UsageError: this CPU does not have that form.
    """
    if form is None:
        return
    if form not in FORMS or not library.kernels_use(FORMS.index(form)):
        raise UsageError(
            f"HVD_EXT_KERNELS={form!r}: this CPU does not have it; use one of {', '.join(FORMS)} "
            "that it has, or unset it"
        )
