"""A request's body as what it asks for: JSON with photos in base64, or a form with files.

Both become the same model: a field of photos takes base64 in JSON and files in a form.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ValidationError, WithJsonSchema
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from sphereface2.files import parse_json
from sphereface2.service.errors import ApiError

JSON, FORM = "application/json", "multipart/form-data"
_MOST_FIELDS = 50
_FIELD_BYTES = 100_000  # of a field that is not a file


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
    """A single value as a list of one."""
    return value if isinstance(value, list | tuple) else [value]


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
            raise invalid(error) from None

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
            try:
                found[name] = parse_json(content)
            except ValueError:
                raise ApiError(422, "invalid", f"{name} must be a JSON object") from None
        else:
            found[name] = content
    return found


def _container(annotation: Any) -> Any:
    """list or dict, where a field is one of them, or one or None."""
    kinds = {get_origin(each) for each in (annotation, *get_args(annotation))}
    return next((kind for kind in (list, dict) if kind in kinds), None)


def invalid(error: ValidationError) -> ApiError:
    """What is wrong with a request, field by field; what was sent is not repeated."""
    return wrong_fields(error.errors(include_url=False, include_input=False, include_context=False))


def wrong_fields(errors: Any) -> ApiError:
    fields = [
        {
            "field": ".".join(str(part) for part in each["loc"]) or "body",
            "message": each["msg"].removeprefix("Value error, "),
        }
        for each in list(errors)[:20]
    ]
    first = fields[0]
    return ApiError(
        422, "invalid", f"{first['field']}: {first['message']}", details={"fields": fields}
    )


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
