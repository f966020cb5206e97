"""The documentation site: `make docs` builds it from Markdown, docstrings and parsers."""

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "profiling"), str(ROOT / "launch")]

from hvd_ext.version import VERSION  # noqa: E402

project = "hvd_ext"
author = "The hvd_ext developers"
release = VERSION
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinxarg.ext",
]
myst_heading_anchors = 4
# Google style; a sentence such as "Raises: as the constructor." stays a sentence.
napoleon_numpy_docstring = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
html_theme = "furo"
html_title = f"hvd_ext {VERSION}"
html_static_path: list[str] = []
exclude_patterns: list[str] = []


def code_as_in_markdown(
    app: Any, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Show `code` in docstrings as code; reStructuredText takes two backticks for that."""
    lines[:] = [re.sub(r"(?<!`)`([^`]+)`(?![`_])", r"``\1``", line) for line in lines]


def setup(app: Any) -> None:
    # Before napoleon, which rewrites sections.
    app.connect("autodoc-process-docstring", code_as_in_markdown, priority=400)
