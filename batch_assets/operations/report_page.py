"""The page of a report: one HTML file that needs nothing else and runs nothing.

Jinja escapes every value, and what does not print is shown as an escape. Pictures are embedded as
images, in which browsers run no script, and the page's own policy forbids whatever would be fetched.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from itertools import islice
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from batch_assets.core.quoting import legible

ROWS_MAX = 40  # of a table of numbers
ID_CHARS = 120
ERROR_CHARS = 300
TEXT_CHARS = 30_000  # of a prompt or a schema
VALUE_CHARS = 2_000  # of anything else


def render_page(facts: Mapping[str, Any]) -> str:
    """The page; `facts` are the template's variables, all foreign text in them as it is."""
    style = _environment().get_template("report.css").render()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = _environment().get_template("report.html")
    return page.render(facts, style=Markup(style), style_hash=f"sha256-{digest}").lstrip()


def picture(svg: str) -> str:
    """An SVG as the address of an image."""
    encoded = svg.encode("utf-8", "backslashreplace")
    return f"data:image/svg+xml;base64,{base64.b64encode(encoded).decode()}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("batch_assets.operations"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_legible,
        trim_blocks=True,
    )
    environment.filters |= {"clipped": clipped, "first": _first, "rounded": _rounded}
    environment.globals |= {
        "ROWS_MAX": ROWS_MAX,
        "ID_CHARS": ID_CHARS,
        "ERROR_CHARS": ERROR_CHARS,
        "TEXT_CHARS": TEXT_CHARS,
    }
    return environment


class _Clipped(str):
    """A text that was cut where it is shown, so that no other limit cuts it again."""


def clipped(value: object, chars_max: int) -> str:
    """The beginning of a text, saying how much was left out."""
    text = str(value)
    if len(text) <= chars_max:
        return _Clipped(text)
    return _Clipped(f"{text[:chars_max]}… ({len(text) - chars_max:,} characters more)")


def _legible(value: Any) -> Any:
    """What jinja calls on each value before it escapes it; our own markup stays as it is."""
    if isinstance(value, Markup) or not isinstance(value, str) or value.startswith("data:image/svg+xml;base64,"):
        return value
    return legible(value if isinstance(value, _Clipped) else clipped(value, VALUE_CHARS))


def _first(values: Mapping[Any, Any], count: int) -> list[tuple[Any, Any]]:
    return list(islice(values.items(), count))


def _rounded(value: float) -> str:
    return f"{value:,.4g}"
