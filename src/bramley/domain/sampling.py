"""How the next token is chosen. Names and meanings are those of OpenAI's and vLLM's request fields."""

import msgspec


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """Parameters of one sequence. The default of every field leaves the distribution as it is.

    ``temperature`` 0 is greedy. ``seed`` None means a fresh seed drawn by the front, so that the worker always
    has one. ``logprobs`` None: no log-probabilities; N >= 0: the chosen token's and the N best of each position.
    ``logit_bias`` maps a token id to an addend of its logit.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.0
    repetition_penalty: float = 1.0
    repetition_context: int = 20
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
