"""From a token id to the bytes it stands for, exactly.

A tokenizer's decoder joins strings, so a character whose bytes come in several tokens is lost unless one goes below
it. This reads the decoder's description (the ``decoder`` object of tokenizer.json, format of the Hugging Face
tokenizers library) and applies it to one token at a time.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from tokenizers import Regex, decoders
from tokenizers import Tokenizer as Backend

log = logging.getLogger("bramley.text")

TextStep = Callable[[str, bool], str]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Contractions and punctuation the WordPiece decoder joins to the word before, in its order.
_CLEANUP = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
    (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


def byte_alphabet() -> dict[str, int]:
    """The printable character GPT-2's byte-level vocabularies write for each byte: 188 stand for themselves."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


class Token(msgspec.Struct, frozen=True):
    """``text`` is None where ``data`` does not decode by itself. ``first`` is ``data`` at the start of an answer."""

    data: bytes
    first: bytes
    text: str | None
    is_special: bool


class Rules(msgspec.Struct, frozen=True):
    """A decoder, taken apart: text steps per token, then bytes, then what is cut at the start of the whole."""

    steps: tuple[TextStep, ...]
    encode: Callable[[str], bytes]
    strip: bytes = b""
    strip_count: int = 0

    def apply(self, token: str, first: bool) -> bytes:
        for step in self.steps:
            token = step(token, first)
        data = self.encode(token)
        for _ in range(self.strip_count if first else 0):
            data = data.removeprefix(self.strip)
        return data


class Vocabulary:
    """Tokens by id, worked out at first use. Shared by all sequences of a model; safe from several threads."""

    def __init__(self, backend: Backend, rules: Rules) -> None:
        self._backend = backend
        self._rules = rules
        self._added = {index: (token.content, token.special) for index, token in added_tokens(backend).items()}
        self._tokens: dict[int, Token] = {}

    @classmethod
    def of(cls, backend: Backend) -> "Vocabulary | None":
        """None where the decoder cannot be applied token by token."""
        decoder, pre_tokenizer = _description(backend.decoder), _description(backend.pre_tokenizer)
        if _is_byte_level(backend, pre_tokenizer) and "ByteLevel" not in {part["type"] for part in _parts(decoder)}:
            log.warning(
                "The tokenizer's decoder does not fit its byte-level vocabulary; a byte-level one is used instead."
            )
            decoder = {"type": "ByteLevel"}
        rules = compile_rules(decoder)
        return None if rules is None else cls(backend, rules)

    def __getitem__(self, token_id: int) -> Token:
        """An id the tokenizer does not know (padding of the embedding) is a token of no bytes."""
        token = self._tokens.get(token_id)
        if token is None:
            token = self._tokens[token_id] = self._make(token_id)
        return token

    def _make(self, token_id: int) -> Token:
        if (added := self._added.get(token_id)) is not None:
            content, is_special = added
            data = content.encode()
            return Token(data, data, content, is_special)
        token = self._backend.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None
        if token is None:
            return Token(b"", b"", "", False)
        data = self._rules.apply(token, first=False)
        return Token(data, self._rules.apply(token, first=True), _whole(data), False)


def added_tokens(backend: Backend) -> dict[int, Any]:
    """The tokens matched as a whole in text, by id, as tokenizers' AddedToken (``content``, ``special``)."""
    return dict(backend.get_added_tokens_decoder())


def compile_rules(decoder: dict[str, Any] | None) -> Rules | None:
    """None for a kind, or an order, that is not known to work on single tokens."""
    steps: list[TextStep] = []
    encode: Callable[[str], bytes] | None = None
    strip, strip_count, per_token = b"", 0, True
    for part in _parts(decoder):
        kind = part["type"]
        if kind == "Fuse":
            per_token = False
        elif kind == "Strip" and (encode or not per_token) and part["stop"] == 0:
            strip, strip_count, per_token = part["content"].encode(), part["start"], False
        elif encode is not None or not per_token:
            return None
        elif kind == "ByteLevel":
            encode = _byte_level_encoder()
        elif kind == "ByteFallback":
            encode = _encode_byte_token
        elif (step := _text_step(part)) is not None:
            steps.append(step)
        else:
            return None
    if not steps and encode is None:
        return None
    return Rules(tuple(steps), encode or str.encode, strip, strip_count)


def _text_step(part: dict[str, Any]) -> TextStep | None:
    match part:
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return lambda token, first: token.replace(old, new)
        case {"type": "Replace", "pattern": {"Regex": pattern}, "content": new}:
            replace = decoders.Replace(Regex(pattern), new)
            return lambda token, first: str(replace.decode([token]))
        case {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme}:
            drop = mark if scheme != "never" else ""
            return lambda token, first: (token.removeprefix(drop) if first else token).replace(mark, " ")
        case {"type": "WordPiece", "prefix": prefix, "cleanup": cleanup}:
            return lambda token, first: _word_piece(token, first, prefix, cleanup)
    return None


def _word_piece(token: str, first: bool, prefix: str, cleanup: bool) -> str:
    if not first:
        token = token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
    for old, new in _CLEANUP if cleanup else ():
        token = token.replace(old, new)
    return token


def _byte_level_encoder() -> Callable[[str], bytes]:
    alphabet = byte_alphabet()

    def encode(token: str) -> bytes:
        try:
            return bytes([alphabet[character] for character in token])
        except KeyError:  # a token written in plain text
            return token.encode()

    return encode


def _encode_byte_token(token: str) -> bytes:
    found = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else token.encode()


def _is_byte_level(backend: Backend, pre_tokenizer: dict[str, Any] | None) -> bool:
    """Judged by how text is cut and, where that says nothing, by the vocabulary holding every byte's character."""
    if any(part["type"] == "ByteLevel" for part in _parts(pre_tokenizer)):
        return True
    if backend.token_to_id("<0x00>") is not None:
        return False
    return all(backend.token_to_id(character) is not None for character in byte_alphabet())


def _description(component: Any) -> dict[str, Any] | None:
    """A component of a tokenizer as it stands in tokenizer.json (its pickled state is that JSON)."""
    return None if component is None else dict(json.loads(component.__getstate__()))


def _parts(description: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if description is None:
        return
    if description["type"] != "Sequence":
        yield description
        return
    for part in description.get("decoders", description.get("pretokenizers", ())):
        yield from _parts(part)


def _whole(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
