"""A request's body as what it asks for: JSON with photos in base64, or a form with files.

Both become the same model: a field of photos takes base64 in JSON and files in a form.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ValidationError, WithJsonSchema
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from sphereface2.files import parse_json
from sphereface2.registry import nearest, shown
from sphereface2.service.errors import ApiError

JSON, FORM = "application/json", "multipart/form-data"
_MOST_FIELDS = 50
_FIELD_BYTES = 100_000  # of a field that is not a file
_LONGEST = 1000  # of a list, and of a body's errors: reading millions would keep all others waiting


def _decoded(value: object) -> object:
    """The bytes of base64, with or without 'data:image/png;base64,' before it."""
    if not isinstance(value, str):
        return value
    if value.startswith("data:"):
        value = value.partition(",")[2]
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be a picture's bytes in base64") from None


Picture = Annotated[
    bytes,
    BeforeValidator(_decoded),
    WithJsonSchema({"type": "string", "format": "byte", "contentEncoding": "base64"}),
]
"""The bytes of an image file: base64 in JSON, a file in a form."""


def as_list(value: object) -> object:
    """A single value as a list of one; far too long a list is refused before its items are read."""
    if not isinstance(value, list | tuple):
        return [value]
    if len(value) > _LONGEST:
        raise ValueError(f"must be a list of at most {_LONGEST:,}")
    return value


Pictures = Annotated[list[Picture], BeforeValidator(as_list)]

Model = TypeVar("Model", bound=BaseModel)


class _InMemory(MultiPartParser):
    spool_max_size = 2**40  # the body is in memory already: nothing of it goes to a disk


def read_body(model: type[Model]) -> Callable[[Request], Coroutine[Any, Any, Model]]:
    """A dependency that reads the body as a model."""

    async def read(request: Request) -> Model:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (JSON, FORM):
            raise ApiError(
                415,
                "unsupported_media_type",
                f"a body must be {JSON} or {FORM}, not {kind or 'without a Content-Type'}",
            )
        body = await request.body()
        try:
            if kind == JSON:
                return model.model_validate_json(body)
            return model.model_validate(await _form(request, body, model))
        except ValidationError as error:
            fields = list(model.model_fields)
            if error.error_count() > _LONGEST:
                sentence = f"must be an object of {', '.join(fields)}, not of thousands of fields"
                details = {"fields": [{"field": "body", "message": sentence}]}
                raise ApiError(422, "invalid", f"body {sentence}", details=details) from None
            raise wrong_fields(error.errors(include_url=False), fields) from None

    return read


async def _form(request: Request, body: bytes, model: type[BaseModel]) -> dict[str, Any]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = _InMemory(
        request.headers,
        stream(),
        max_files=_MOST_FIELDS,
        max_fields=_MOST_FIELDS,
        max_part_size=_FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except (MultiPartException, HTTPException) as error:
        raise ApiError(
            400, "bad_form", f"the form cannot be read: {getattr(error, 'message', 'damaged')}"
        ) from None
    items: list[tuple[str, str | bytes]] = [
        (name, await value.read() if isinstance(value, UploadFile) else value)
        for name, value in form.multi_items()
    ]
    await form.close()
    found: dict[str, Any] = {}
    for name, content in items:
        field = model.model_fields.get(name)
        kind = None if field is None else _container(field.annotation)
        if kind is list:
            found.setdefault(name, []).append(content)
        elif name in found:
            raise ApiError(400, "bad_form", f"the form has the field '{name}' twice")
        elif kind is dict:
            found[name] = content
            with suppress(ValueError):  # else it is not the object that is wanted
                found[name] = parse_json(content)
        else:
            found[name] = content
    return found


def _container(annotation: Any) -> Any:
    """list or dict, where a field is one of them, or one or None."""
    kinds = {get_origin(each) for each in (annotation, *get_args(annotation))}
    return next((kind for kind in (list, dict) if kind in kinds), None)


# What pydantic asks for by its types of errors, or by their first words, in ours.
_WANTED = {
    "json": "a JSON object",
    "model": "a JSON object",
    "dict": "a JSON object",
    "bytes": "a picture: base64 in JSON, a file in a form",
    "string": "a text",
    "string_too_short": "a text of {min_length:,} or more characters",
    "string_too_long": "a text of at most {max_length:,} characters",
    "too_short": "a list of {min_length:,} or more",
    "too_long": "a list of at most {max_length:,}",
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "literal_error": "{expected}",
    "greater_than": "above {gt:,}",
    "greater_than_equal": "at least {ge:,}",
    "less_than": "below {lt:,}",
    "less_than_equal": "at most {le:,}",
}
_QUOTED = 40  # characters of a text that is repeated to its sender, and of a field's name


def wrong_fields(errors: Sequence[Any], known: Sequence[str] = ()) -> ApiError:
    """What is wrong with a request, field by field, of pydantic's errors about it.

    known: the fields that the request may have
    """
    fields = [
        {
            "field": ".".join(_cut(str(part)) for part in each["loc"]) or "body",
            "message": _what_is_wrong(each, known),
        }
        for each in errors[:20]
    ]
    first = fields[0]
    return ApiError(
        422, "invalid", f"{first['field']} {first['message']}", details={"fields": fields}
    )


def _what_is_wrong(error: Mapping[str, Any], known: Sequence[str]) -> str:
    """What is wanted of a field and what was given, as a sentence that the field's name begins."""
    kind, value = error["type"], error["input"]
    context: Mapping[str, Any] = error.get("ctx", {})
    if kind == "missing":
        there = ", ".join(map(_cut, list(value or ())[:20])) or "no field"
        return f"must be given; the request has {there}"
    if kind == "extra_forbidden":
        hint = nearest(_cut(error["loc"][-1]), known)
        return f"is not a field of this request{hint} (known: {', '.join(known)})"
    hint = ""
    if kind == "value_error":  # of a validator of ours
        wanted = str(context["error"])
    else:
        wanted = _WANTED.get(kind) or _WANTED.get(kind.partition("_")[0], "something else")
        wanted = f"must be {wanted.format(**context)}"
    if kind == "literal_error" and isinstance(value, str):
        hint = nearest(_cut(value), re.findall(r"'([^']+)'", wanted))
    if kind == "json_invalid" and (place := re.search(r"line \d+ column \d+", context["error"])):
        hint = f" that cannot be read at {place[0].replace(' column', ', column')}"
    return f"{wanted}, not {_given(value)}{hint}"


def _given(value: object) -> str:
    """What was sent in a few words; a picture is never repeated."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value):,}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, str) and len(value) > _QUOTED:
        return f"a text of {len(value):,} characters"
    return "null" if value is None else shown(value)


def _cut(text: str) -> str:
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads such a body."""
    schema = model.model_json_schema()
    assert "$defs" not in schema, "a model of a body has no models in it"
    form = json.loads(json.dumps(schema))
    for name, each in form.get("properties", {}).items():
        _as_file(each)
        if _container(model.model_fields[name].annotation) is dict:
            form["properties"][name] = {"type": "string", "description": "a JSON object"}
    content = {JSON: {"schema": schema}, FORM: {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


def _as_file(schema: dict[str, Any]) -> None:
    if schema.get("format") == "byte":
        schema.pop("contentEncoding")
        schema["format"] = "binary"
    for inner in (schema.get("items"), *schema.get("anyOf", ())):
        if isinstance(inner, dict):
            _as_file(inner)
