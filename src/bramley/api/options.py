"""What the HTTP layer is told at start."""

from typing import Any

import msgspec


class ApiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``api_keys`` empty: no key is asked for. ``stream_interval``: tokens per streamed chunk, at least 1.

    ``strict_fields``: a request field that nobody knows is refused. ``template_kwargs``: variables of every template.
    """

    api_keys: tuple[str, ...] = ()
    stream_interval: int = 1
    keepalive_s: float = 15.0
    max_body_bytes: int = 16 << 20
    owned_by: str = "bramley"
    strict_fields: bool = False
    template_kwargs: dict[str, Any] = {}
