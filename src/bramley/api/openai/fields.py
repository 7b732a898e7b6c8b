"""What becomes of every request field: honoured, accepted without effect by design, or refused.

The honoured ones are those of the schema. docs/api-fields.md is made of the tables here.
"""

import logging
from collections.abc import Mapping
from typing import Any

from bramley.domain.errors import InvalidRequest

log = logging.getLogger("bramley.api")

# What a field means; chat's and completions' own schemas say which of them takes it.
HONOURED: Mapping[str, str] = {
    "add_generation_prompt": "false only together with continue_final_message, as vLLM's clients send it",
    "best_of": "answers generated for each prompt, of which the n most likely by token are returned; not streamed",
    "chat_template_kwargs": "variables for the model's template, over those of --default-chat-template-kwargs",
    "continue_final_message": "whether the model goes on with a last message of the assistant; not given: it does",
    "echo": "the prompt in front of the answer; with logprobs, the prompt's too",
    "enable_thinking": "the template variable of this name",
    "frequency_penalty": "-2 to 2",
    "ignore_eos": "go on past the model's end of turn",
    "logit_bias": "up to 1024 token ids, -100 to 100 each",
    "logprobs": "of the model itself, before penalties and temperature; completions: the number of alternatives, to 20",
    "max_completion_tokens": "before max_tokens where both are given",
    "max_tokens": "prompt and answer beyond the context length are refused; not given: as the context allows",
    "messages": "text parts are joined as they are; all system and developer messages become one, in front",
    "min_p": "0 to 1",
    "min_tokens": "no end of turn before",
    "model": "any name while one model is served; echoed as sent",
    "n": "1 to 16 answers; with a seed, each but the first has the seed before it plus one",
    "presence_penalty": "-2 to 2",
    "priority": "high, normal, low or batch (both mean: after all others)",
    "prompt": "a text, a list of texts, token ids, or a list of lists of token ids",
    "reasoning_effort": "the template variable of this name; none also sets enable_thinking to false",
    "repetition_context_size": "tokens that repetition_penalty looks back",
    "repetition_penalty": "above 0, to 10",
    "seed": "64 bits; the same seed gives the same answer, whatever runs beside it",
    "stop": "a string or up to 64; found across tokens, never part of the answer, not looked for in reasoning",
    "stop_token_ids": "token ids that end the answer",
    "stream": "server-sent events",
    "stream_options": "include_usage, continuous_usage_stats; include_obfuscation has no effect",
    "temperature": "0 (greedy) to 2; not given: --default-temperature, else the model's",
    "timeout": "seconds without progress, in place of --timeout",
    "top_k": "0 or -1: all",
    "top_logprobs": "0 to 20, with logprobs",
    "top_p": "above 0, to 1; not given: --default-top-p, else the model's",
    "typical_p": "above 0, to 1",
    "xtc_probability": "0 to 1",
    "xtc_threshold": "0 to 0.5",
}

_RECORDS = "concerns the records of OpenAI's own service"
_TEXT = "the answer is text without it"

# A local server has nothing to do for them.
WITHOUT_EFFECT: Mapping[str, str] = {
    "include_reasoning": "reasoning is always told apart from the answer",
    "metadata": _RECORDS,
    "moderation": _RECORDS,
    "prediction": "a hint that makes OpenAI's service faster; the answer is the same",
    "prompt_cache_key": "cached prompts are found by what they hold",
    "prompt_cache_options": "cached prompts are found by what they hold",
    "prompt_cache_retention": "cached prompts are found by what they hold",
    "request_id": "the X-Request-Id header is honoured instead",
    "safety_identifier": _RECORDS,
    "service_tier": "there is one tier; see priority",
    "store": _RECORDS,
    "user": _RECORDS,
    "verbosity": "a hint that models here are not trained on",
}

# Refused, with the values that change nothing and are therefore accepted. None is accepted for every field.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "adapters": (),
    "add_special_tokens": (),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "cache_salt": ("",),
    "chat_template": (),
    "documents": ([],),
    "draft_model": (),
    "extra_body": ({},),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "mirostat": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prompt_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "specprefill": (False,),
    "structured_outputs": ({},),
    "suffix": ("",),
    "thinking_budget": (),
    "thinking_token_budget": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "video_fps": (),
    "video_max_frames": (),
    "web_search_options": (),
}
# Honoured by one of the two protocols and meaningless in the other.
ELSEWHERE: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "enable_thinking": (),
    "max_completion_tokens": (),
    "messages": (),
    "prompt": (),
    "reasoning_effort": (),
    "top_logprobs": (),
}

# Fields of a message, beyond those that the schema names.
MESSAGE_WITHOUT_EFFECT = frozenset({"annotations", "id", "partial", "prefix", "refusal", "status", "type", "weight"})
MESSAGE_REFUSED: Mapping[str, tuple[Any, ...]] = {"audio": ()}


class FieldCheck:
    """Looks at the fields a schema did not name. ``strict`` refuses an unknown one; else each is logged once."""

    def __init__(self, strict: bool = False) -> None:
        self._strict = strict
        self._seen: set[str] = set()

    def check(self, extra: Mapping[str, Any] | None) -> None:
        """Of a body. Raises InvalidRequest naming the first field that would change the answer but cannot."""
        for name, value in (extra or {}).items():
            if name in REFUSED or name in ELSEWHERE:
                _refuse(name, value, {**REFUSED, **ELSEWHERE}[name], "")
            elif name not in WITHOUT_EFFECT:
                self._unknown(name)

    def check_message(self, extra: Mapping[str, Any] | None, place: str) -> None:
        """Of the message at ``place``. Raises InvalidRequest."""
        for name, value in (extra or {}).items():
            if name in MESSAGE_REFUSED:
                _refuse(name, value, MESSAGE_REFUSED[name], f"{place}.")
            elif name not in MESSAGE_WITHOUT_EFFECT:
                self._unknown(name, f"{place}.")

    def _unknown(self, name: str, prefix: str = "") -> None:
        if self._strict:
            shown = f"{prefix}{name[:100]}"
            raise InvalidRequest(f"{shown} is not a field this server knows.", param=shown, code="unknown_parameter")
        if name not in self._seen and len(self._seen) < 1000:
            self._seen.add(name)
            log.warning("request field %r is unknown and has no effect", f"{prefix}{name}"[:100])


def _refuse(name: str, value: Any, neutral: tuple[Any, ...], prefix: str) -> None:
    if value is not None and not any(type(value) is type(one) and value == one for one in neutral):
        raise InvalidRequest(
            f"{prefix}{name} is not supported here.", param=f"{prefix}{name}", code="unsupported_parameter"
        )
