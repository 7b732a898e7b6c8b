"""The list of routes."""

from fastapi import APIRouter

from bramley.api.context import ApiContext
from bramley.api.openai import chat, completions, models
from bramley.api.ops import health


def routers(context: ApiContext) -> tuple[APIRouter, ...]:
    return (
        chat.router(context),
        completions.router(context),
        models.router(context),
        health.router(context),
    )
