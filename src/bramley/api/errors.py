"""Domain errors as HTTP: one row per error, one envelope for OpenAI's clients.

The body carries OpenAI's ``error`` object and, beside it, the ``detail`` string that clients of FastAPI servers read.
"""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from bramley.domain import errors
from bramley.domain.errors import BramleyError

log = logging.getLogger("bramley.api")

# First match wins: error, status, OpenAI's error type.
TABLE: tuple[tuple[type[BramleyError], int, str], ...] = (
    (errors.Unauthorized, 401, "authentication_error"),
    (errors.ModelNotFound, 404, "invalid_request_error"),
    (errors.NotFound, 404, "invalid_request_error"),
    (errors.MethodNotAllowed, 405, "invalid_request_error"),
    (errors.BodyTooLarge, 413, "invalid_request_error"),
    (errors.RequestError, 400, "invalid_request_error"),
    (errors.Overloaded, 429, "rate_limit_error"),
    (errors.Timeout, 504, "timeout_error"),
    (errors.ModelUnavailable, 503, "service_unavailable_error"),
    (errors.WorkerDied, 503, "service_unavailable_error"),
    (errors.ShuttingDown, 503, "service_unavailable_error"),
    (errors.BramleyError, 500, "server_error"),
)


def status_and_type(error: BramleyError) -> tuple[int, str]:
    return next((status, kind) for cls, status, kind in TABLE if isinstance(error, cls))


def envelope(error: BramleyError) -> dict[str, Any]:
    _, kind = status_and_type(error)
    inner = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    return {"error": inner, "detail": error.message}


def headers(error: BramleyError) -> dict[str, str]:
    found = {}
    if error.retry_after_s is not None:
        found["retry-after"] = str(max(1, round(error.retry_after_s)))
    if isinstance(error, errors.Unauthorized):
        found["www-authenticate"] = "Bearer"
    return found


def response(error: BramleyError, extra: Mapping[str, str] | None = None) -> JSONResponse:
    status, _ = status_and_type(error)
    return JSONResponse(envelope(error), status, {**headers(error), **(extra or {})})


async def on_bramley_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, BramleyError)
    return response(error)


async def on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """The router's own refusals: unknown routes and methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        known: BramleyError = errors.MethodNotAllowed(f"{request.method} is not allowed on {request.url.path}.")
    else:
        known = errors.NotFound(f"There is no {request.method} {request.url.path} on this server.")
    return response(known, error.headers)


async def on_client_left(request: Request, error: Exception) -> Response:
    """Nobody reads this; 499 is what the access log shows."""
    return Response(status_code=499)


async def on_unexpected(request: Request, error: Exception) -> JSONResponse:
    """A bug. The log has the traceback; the client gets a sentence without any Python in it."""
    return response(unexpected(error))


def unexpected(error: BaseException) -> errors.InternalError:
    log.error("a request failed with an error nobody expected", exc_info=error)
    return errors.InternalError("The server met an error it did not expect; its log says more.")
