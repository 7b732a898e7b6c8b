"""Reading and checking a request body, so that every fault is a 400 that names the field."""

from collections.abc import Iterable
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from bramley.domain.errors import BodyTooLarge, InvalidRequest, ShuttingDown

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, model: type[Model], limit: int) -> Model:
    """Read JSON of at most ``limit`` bytes. Raises InvalidRequest, BodyTooLarge."""
    chunks = bytearray()
    try:
        async for chunk in request.stream():
            chunks += chunk
            if len(chunks) > limit:
                raise BodyTooLarge(f"The request body is larger than {limit} bytes.")
    except ClientDisconnect:
        raise ShuttingDown("The client left before it had sent its request.") from None
    try:
        return model.model_validate_json(bytes(chunks))
    except ValidationError as error:
        raise _first_fault(error) from None


# What pydantic says in the terms of Python types, said in those of JSON.
WORDS = {
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "finite_number": "must be a number that is not infinite",
    "float_type": "must be a number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "string_type": "must be a string",
    "too_short": "must not be empty",
}


def _first_fault(error: ValidationError) -> InvalidRequest:
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    message = WORDS.get(fault["type"], "") or str(fault["msg"])
    if fault["type"] == "json_invalid":
        return InvalidRequest(f"The body is not valid JSON: {message.removeprefix('Invalid JSON: ')}.")
    param = path(fault["loc"])
    if not param:
        return InvalidRequest("The body must be a JSON object.")
    if fault["type"] == "missing":
        return InvalidRequest(f"{param} is missing.", param=param, code="missing_field")
    return InvalidRequest(f"{param}: {message[:1].lower()}{message[1:]}.", param=param)


def path(loc: Iterable[int | str]) -> str:
    """A field's place as OpenAI writes it: ``messages[0].content``."""
    text = ""
    for step in loc:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
