"""GET /v1/models (https://platform.openai.com/docs/api-reference/models), with vLLM's extra fields."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from bramley.api.context import ApiContext
from bramley.service.pool import Model


def card(name: str, model: Model, context: ApiContext) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": context.started,
        "owned_by": context.options.owned_by,
        "root": model.names[0],
        "parent": None,
        "max_model_len": model.ready.context_length or None if model.ready else None,
    }


def router(context: ApiContext) -> APIRouter:
    routes = APIRouter(tags=["models"])

    @routes.get("/v1/models", summary="Models this server offers")
    async def listing() -> JSONResponse:
        cards = [card(name, model, context) for model in context.pool.models for name in model.names]
        return JSONResponse({"object": "list", "data": cards})

    @routes.get("/v1/models/{model_id:path}", summary="One model")
    async def one(model_id: str) -> JSONResponse:
        return JSONResponse(card(model_id, context.pool.describe(model_id), context))

    return routes
