"""Request fields beyond the schema: what is accepted without effect, what is refused, and what is unknown."""

import logging
from collections.abc import Mapping
from typing import Any

from bramley.domain.errors import InvalidRequest

log = logging.getLogger("bramley.api")

# They concern OpenAI's own service or only its records: a local server has nothing to do for them.
WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "moderation",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)

# Not supported, with the values that change nothing and are therefore accepted. None is accepted for every field.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "cache_salt": ("",),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
    "enable_thinking": (),
    "extra_body": ({},),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prompt_logprobs": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "suffix": ("",),
    "thinking_token_budget": (),
    "timeout": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "web_search_options": (),
}


class FieldCheck:
    """Looks at the fields a schema did not name. An unknown one is logged, once for each name."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def check(self, extra: Mapping[str, Any] | None, prefix: str = "") -> None:
        """Raises InvalidRequest naming the first field that would change the answer but cannot."""
        for name, value in (extra or {}).items():
            if name in REFUSED:
                if value is not None and value not in REFUSED[name]:
                    raise InvalidRequest(
                        f"{prefix}{name} is not supported by this server yet.",
                        param=f"{prefix}{name}",
                        code="unsupported_parameter",
                    )
            elif name not in WITHOUT_EFFECT and name not in self._seen and len(self._seen) < 1000:
                self._seen.add(name)
                log.warning("request field %r is unknown and has no effect", f"{prefix}{name}"[:100])
