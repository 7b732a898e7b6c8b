"""A model's tokenizer, from its directory: text to ids, messages to ids, and a detokenizer for each answer."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bramley.domain.errors import ModelLoadError
from bramley.domain.requests import ChatPrompt
from bramley.service.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from bramley.service.template import ChatTemplate
from bramley.service.vocabulary import Vocabulary, added_tokens

# What a tokenizer can be made of; sentencepiece models and word lists take transformers' converters.
_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")

log = logging.getLogger("bramley.text")

# Text in front of a part that stands in the middle of a prompt, where a SentencePiece tokenizer would else add a space.
_ANCHOR = "\n"
# Any text: what the tokenizer puts around it is looked up once.
_PROBE = "a"


class Tokenizer:
    """Safe from several threads: the backend is only read after loading.

    ``bos_token_id`` None: the model has none. ``eos_token_ids`` are all that the tokenizer, generation_config.json and
    config.json name. ``special_ids`` are the control tokens. ``vocab_size`` is the largest id
    and one. ``longest_token``: no token stands for more characters.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._backend: Backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._vocabulary = Vocabulary.of(self._backend)
        if self._vocabulary is None:
            log.info("The tokenizer's decoder is not known; text is decoded in windows, which is slower.")
        specials = {index: token.content for index, token in added_tokens(self._backend).items() if token.special}
        self._specials: Mapping[int, str] = specials
        self.template = ChatTemplate(tokenizer, specials.values())
        self.special_ids = frozenset(specials)
        self.bos_token_id: int | None = tokenizer.bos_token_id
        self.eos_token_ids = eos_token_ids
        self._front = self._front_ids()
        self.longest_token = max(map(len, self._backend.get_vocab(with_added_tokens=True)), default=1)
        self.vocab_size = max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a model directory; nothing is fetched and none of its code runs. Raises ModelLoadError."""
        if not path.is_dir():
            raise ModelLoadError(f"There is no model directory at {path}.")
        if not any((path / name).is_file() for name in _FILES):
            raise ModelLoadError(f"The model in {path} has no tokenizer.json.")
        # A tokenizer.json is taken as it stands: the class a config names may rebuild it with another decoder.
        kind = PreTrainedTokenizerFast if (path / "tokenizer.json").is_file() else AutoTokenizer
        try:
            tokenizer = kind.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
        except Exception as error:  # tokenizers raises a bare Exception for a file it cannot read
            reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
            raise ModelLoadError(f"The tokenizer in {path} cannot be loaded: {reason}.") from error
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ModelLoadError(f"The tokenizer in {path} has no tokenizer.json, and none can be made from its files.")
        loaded = cls(tokenizer, _eos_token_ids(path, tokenizer))
        try:
            loaded.template.check()
        except TemplateSyntaxError as error:
            raise ModelLoadError(
                f"The chat template in {path} is broken at line {error.lineno}: {error.message}"
            ) from error
        return loaded

    @property
    def has_template(self) -> bool:
        return self.template.exists

    def encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        """Control words in ``text`` become control tokens. Raises UnicodeEncodeError for half a surrogate pair."""
        text.encode()
        return tuple(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """With what the model puts in front of any text, once; never with what it may put behind."""
        ids = self.encode(text, False)
        return ids if ids[: len(self._front)] == self._front else self._front + ids

    def render(self, prompt: ChatPrompt) -> str:
        """The prompt's text by the model's template. Raises InvalidRequest."""
        return "".join(self.template.render(prompt))

    def encode_chat(self, prompt: ChatPrompt) -> tuple[int, ...]:
        """The template brings its own special tokens, the first one included. Raises InvalidRequest."""
        first, *others = self.template.render(prompt)
        ids = [*self.encode(first, False)]
        for part in others:
            ids += self._encode_inner(part)
        return tuple(ids)

    def detokenizer(self, continues: bool = False) -> Detokenizer:
        """A fresh one for each sequence. ``continues``: its text goes on where other text ended."""
        if self._vocabulary is None:
            return WindowDetokenizer(self._decode, dict(self._specials))
        return ByteDetokenizer(self._vocabulary, continues)

    def _front_ids(self) -> tuple[int, ...]:
        plain, framed = self.encode(_PROBE, False), self.encode(_PROBE, True)
        starts = range(len(framed) - len(plain) + 1)
        return next((framed[:start] for start in starts if framed[start : start + len(plain)] == plain), ())

    def _encode_inner(self, part: str) -> tuple[int, ...]:
        anchor, ids = self.encode(_ANCHOR, False), self.encode(_ANCHOR + part, False)
        return ids[len(anchor) :] if ids[: len(anchor)] == anchor else self.encode(part, False)

    def _decode(self, token_ids: Any) -> str:
        return str(self._backend.decode(list(token_ids), skip_special_tokens=False))


def _eos_token_ids(path: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    found: list[Any] = [tokenizer.eos_token_id]
    for name in ("generation_config.json", "config.json"):
        try:
            value = json.loads((path / name).read_bytes()).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue
        found += value if isinstance(value, list) else [value]
    return frozenset(index for index in found if isinstance(index, int) and not isinstance(index, bool))
