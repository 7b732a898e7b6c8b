"""Access is denied by default: with API keys set, every route asks for one but those listed here."""

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from bramley.api.errors import response
from bramley.domain.errors import Unauthorized

# Probes that load balancers and clients send without a key. Method None: any.
OPEN_ROUTES: frozenset[tuple[str | None, str]] = frozenset(
    {
        (None, "/health"),
        (None, "/livez"),
        (None, "/readyz"),
        (None, "/metrics"),
        ("HEAD", "/"),
        ("HEAD", "/api/hello"),
    }
)


class ApiKeyMiddleware:
    """Accepts ``Authorization: Bearer KEY`` and ``x-api-key: KEY``. Without configured keys it lets all pass."""

    def __init__(self, app: ASGIApp, api_keys: tuple[str, ...]) -> None:
        self._app = app
        # Digests of equal length: comparing them tells nothing about the keys, not even how long they are.
        self._digests = [_digest(key.encode()) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._digests or _is_open(scope) or self._known(scope):
            await self._app(scope, receive, send)
            return
        error = Unauthorized("A valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
        await response(error)(scope, receive, send)

    def _known(self, scope: Scope) -> bool:
        given = _digest(_given_key(Headers(scope=scope)).encode("latin-1"))
        # Every key is compared, so that the time taken does not tell which one came close.
        return any([hmac.compare_digest(given, known) for known in self._digests])


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _is_open(scope: Scope) -> bool:
    return (None, scope["path"]) in OPEN_ROUTES or (scope["method"], scope["path"]) in OPEN_ROUTES


def _given_key(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key", "").strip()
