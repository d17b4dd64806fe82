"""Pages: one HTML file each, that holds everything it shows and loads nothing."""

from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined


def render_page(template: str, **values: Any) -> str:
    """One of the templates, filled in; every value is escaped unless it is Markup."""
    environment = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(**values)


def _source(name: str) -> str:
    return (
        resources.files("sphereface2.reporting")
        .joinpath("templates", name)
        .read_text(encoding="utf-8")
    )
