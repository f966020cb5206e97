"""A page from its template: no scripts, no network, the raw data inside."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hvd_ext.units import format_seconds

if TYPE_CHECKING:
    from jinja2 import Environment


def render_page(template: str, data: dict[str, Any], **values: Any) -> str:
    """Fill in a template.

    Args:
        template: its file's name.
        data: the data that the page carries for programs.
        values: values of the template's variables.
    """
    from markupsafe import Markup

    environment = _environment()
    # Escaped by _embedded() for its place in the page.
    return environment.get_template(template).render(
        data=Markup(_embedded(data)), seconds=format_seconds, **values
    )


def _embedded(data: dict) -> str:
    """JSON for the inside of a page: nothing in it ends the element that contains it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _environment() -> Environment:
    # Recording needs no templates.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("hvprof.reporters.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
