"""What the OpenAPI document says of bodies that routes read themselves."""

from typing import Any

from pydantic import BaseModel

ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        },
        "detail": {"type": "string"},
    },
    "required": ["error", "detail"],
}


def accepts(body: type[BaseModel]) -> dict[str, Any]:
    """Keyword arguments of a route that reads ``body`` as JSON."""
    schema = body.model_json_schema()
    return {
        "openapi_extra": {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
        "responses": {
            status: {"description": text, "content": {"application/json": {"schema": ERROR_SCHEMA}}}
            for status, text in (
                (400, "A field is missing, malformed or not supported"),
                (401, "A valid API key is needed"),
                (404, "No such model"),
                (413, "The body is too large"),
                (429, "The queue is full"),
                (500, "The answer could not be generated"),
                (503, "The model is not available now"),
                (504, "The request took too long"),
            )
        },
    }
