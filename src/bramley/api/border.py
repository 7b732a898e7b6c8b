"""Nothing a request does reaches the server behind it."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bramley.api.errors import response, unexpected


class Border:
    """Turns an error nobody expected into a log entry and, if nothing was sent yet, a clear answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except OSError:
            # The client left while its answer was being sent.
            scope["state"]["outcome"] = " client left (499)"
        except Exception as error:  # noqa: BLE001 - the request border
            # Starlette answers, and raises again, what its routes raise; this is what happens around them.
            if not started:
                await response(unexpected(error))(scope, receive, send)
