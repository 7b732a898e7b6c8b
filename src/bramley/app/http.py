"""The ASGI application."""

from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from bramley import __version__
from bramley.api import errors
from bramley.api.border import Border
from bramley.api.context import ApiContext
from bramley.api.disconnect import ClientLeft
from bramley.api.request_id import RequestIdMiddleware
from bramley.api.router import routers
from bramley.api.security import ApiKeyMiddleware
from bramley.domain.errors import BramleyError


class _App(FastAPI):
    """FastAPI documents a 422 for every route with a parameter; this server never answers one."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document.get("components", {}).get("schemas", {}).pop(name, None)
        return document


def routes_app(context: ApiContext) -> FastAPI:
    """The routes and their error handling, without what stands around them."""
    app = _App(title="Bramley", version=__version__, redoc_url=None)
    for router in routers(context):
        app.include_router(router)
    app.add_exception_handler(BramleyError, errors.on_bramley_error)
    app.add_exception_handler(HTTPException, errors.on_http_exception)
    app.add_exception_handler(Exception, errors.on_unexpected)
    app.add_exception_handler(ClientLeft, errors.on_client_left)
    return app


def asgi_app(context: ApiContext) -> ASGIApp:
    """From the outside in: name the request, catch what nobody expected, ask for the key, route."""
    return RequestIdMiddleware(Border(ApiKeyMiddleware(routes_app(context), context.options.api_keys)))
