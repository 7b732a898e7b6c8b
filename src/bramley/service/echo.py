"""A prompt in front of its answer, as completions may ask for it."""

import msgspec

from bramley.domain.events import Piece, TextDelta, TokenLogprob
from bramley.domain.requests import GenerationRequest, TextPrompt
from bramley.domain.wire import Logprobs
from bramley.service.tokenizer import Tokenizer

# What stands in for a first token's log-probabilities until its place is known.
_NOTHING = Logprobs(0.0)


class Echo(msgspec.Struct, frozen=True):
    """``text`` None: whatever the tokens say."""

    text: str | None
    token_ids: tuple[int, ...]
    tokenizer: Tokenizer
    with_logprobs: bool

    @classmethod
    def of(cls, request: GenerationRequest, token_ids: tuple[int, ...], tokenizer: Tokenizer) -> "Echo":
        text = request.prompt.text if isinstance(request.prompt, TextPrompt) else None
        return cls(text, token_ids, tokenizer, request.sampling.prompt_logprobs is not None)

    def delta(self, logprobs: tuple[Logprobs, ...]) -> TextDelta:
        """``logprobs`` are those of the prompt's tokens from the second on. Control tokens have no text."""
        detokenizer = self.tokenizer.detokenizer(continues=True)
        rows = (_NOTHING, *logprobs) if self.with_logprobs else ()
        pieces = [*detokenizer.feed(self.token_ids, rows), *detokenizer.finish()]
        text = "".join(piece.text for piece in pieces if not piece.is_special) if self.text is None else self.text
        scores = [score for piece in pieces for score in _scores(piece)]
        if scores:
            scores[0] = msgspec.structs.replace(scores[0], logprob=None, top=())
        return TextDelta(text, tuple(scores))


def _scores(piece: Piece) -> tuple[TokenLogprob, ...]:
    if not piece.is_special:
        return piece.logprobs
    return tuple(msgspec.structs.replace(score, data=b"") for score in piece.logprobs)
