"""Is the server alive, is it ready, and what is it doing."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from bramley import __version__
from bramley.api.context import ApiContext
from bramley.service.pool import Model

# The supervisor's state in the words of the health report.
STATUS = {
    "loading": "loading",
    "ready": "healthy",
    "unresponsive": "degraded",
    "restarting": "degraded",
    "failed": "failed",
    "stopped": "stopped",
}


def report(model: Model) -> dict[str, Any]:
    health = model.health()
    found: dict[str, Any] = {
        "status": STATUS[health.state],
        "model_loaded": health.state == "ready",
        "model_name": model.names[0],
        "model_type": "llm",
        "mcp": None,
        "restarts": health.restarts,
        "notes": list(health.notes),
    }
    if health.reason and health.state != "ready":
        found["reason"] = f"The worker {health.reason}."
    return found


def router(context: ApiContext) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get("/health", summary="State of the model; 503 unless it is healthy")
    async def health() -> JSONResponse:
        found = report(context.pool.models[0])
        return JSONResponse(found, 200 if found["status"] == "healthy" else 503)

    @routes.get("/livez", summary="The server process answers")
    async def live() -> JSONResponse:
        return JSONResponse({"status": "alive"})

    @routes.get("/readyz", summary="200 once requests are answered at once")
    async def ready() -> JSONResponse:
        found = report(context.pool.models[0])
        is_ready = found["status"] == "healthy"
        return JSONResponse({"status": "ready" if is_ready else found["status"]}, 200 if is_ready else 503)

    @routes.get("/", summary="What this server is")
    async def about() -> JSONResponse:
        return JSONResponse({"name": "Bramley", "version": __version__, "api": "/v1", "documentation": "/docs"})

    @routes.head("/", include_in_schema=False)
    @routes.head("/health", include_in_schema=False)
    @routes.head("/api/hello", include_in_schema=False)
    async def hello() -> Response:
        return Response()

    return routes
