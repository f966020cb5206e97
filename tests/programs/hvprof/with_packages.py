"""Runs a program with the packages of another environment after those of this one."""

import runpy
import sys

folder, *sys.argv = sys.argv[1:]
sys.path.append(folder)
runpy.run_path(sys.argv[0], run_name="__main__")
