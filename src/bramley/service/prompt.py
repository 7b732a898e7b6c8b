"""Any prompt in, token ids out."""

from bramley.domain.errors import InvalidRequest
from bramley.domain.requests import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from bramley.service.tokenizer import Tokenizer


class Prompter:
    """Runs in the text threads of the front; keeps nothing between calls."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def prepare(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of the whole prompt; empty for an empty text of a model without a first token.

        Raises InvalidRequest: no template, or messages it refuses; ids out of range; text that is not Unicode.
        """
        try:
            match prompt:
                case ChatPrompt():
                    return self._tokenizer.encode_chat(prompt)
                case TextPrompt():
                    return self._tokenizer.encode_text(prompt.text)
                case TokenPrompt():
                    return self._check(prompt.token_ids)
        except UnicodeEncodeError:
            field = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
            raise InvalidRequest("The text holds half of a surrogate pair; send valid Unicode.", param=field) from None

    def _check(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        size = self._tokenizer.vocab_size
        for token_id in token_ids:
            if not 0 <= token_id < size:
                raise InvalidRequest(
                    f"Token id {token_id} is out of range: this model has ids 0 to {size - 1}.", param="prompt"
                )
        return token_ids
