"""What the service layer is told at start."""

import msgspec


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Used where a request says nothing. None: the model's own, else the protocol's, default.

    ``max_request_tokens`` is a ceiling: a request that asks for more is refused.
    """

    max_tokens: int | None = None
    max_request_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None


class ServiceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``stream_buffer_tokens``: how far a client may fall behind its own stream before it is cut off.

    ``max_in_flight``: requests running and waiting at once; one more is refused. The engine's slots and its queue.
    """

    served_names: tuple[str, ...] = ()
    defaults: GenerationDefaults = GenerationDefaults()
    timeout_s: float = 300.0
    stream_buffer_tokens: int = 8192
    max_in_flight: int = 1088
    text_threads: int = 2
