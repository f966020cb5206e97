"""`python run_module.py M ...` is `python -m M ...`, without the working folder's modules.

Python 3.11 has -P for this, 3.10 nothing.
"""

import sys

if __name__ == "__main__":
    # This file's folder is in the place of the working folder, which -m would put there.
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    del sys.argv[0]

    import runpy

    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
