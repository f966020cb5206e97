"""Collects all that a site needs for hvprof in one archive. Standard library only.

The archive has the wheels of hvd_ext and of what it requires, for this Python and machine, and
install.py. Where it is unpacked, neither a network nor a compiler is needed.
"""

from __future__ import annotations

import argparse
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Collect hvprof's wheels and install.py.")
    parser.add_argument("output", metavar="DIR", type=Path, help="folder for the archive")
    output = parser.parse_args().output
    version = runpy.run_path(str(ROOT / "hvd_ext" / "version.py"))["VERSION"]
    name = f"hvprof-{version}"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / name
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "-w", root / "wheels", ROOT)
        if subprocess.run(pip, check=False).returncode:
            sys.exit("bundle.py: error: pip could not build or get the wheels: see above")
        shutil.copy2(HERE / "install.py", root)
        output.mkdir(parents=True, exist_ok=True)
        archive = output / f"{name}.tar.gz"
        with tarfile.open(archive, "w:gz", compresslevel=1) as file:
            file.add(root, name)
    print(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
