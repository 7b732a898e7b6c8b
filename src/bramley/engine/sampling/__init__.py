"""The next token of each row of logits: who asks for what (rows), in what order it is done, and the draw itself.

Order: repetition, presence and frequency penalties, logit_bias, bans (parameters); temperature; then, each on what the
one before left and renormalised, top_k and min_p, typical_p, top_p, XTC (filters); then one draw (noise). The draw
depends on the row's logits, parameters, seed and position alone, so that a row gives the same token in any batch and
place. Nothing here evaluates an array except ``draw``.
"""

from bramley.engine.sampling.batch import Drawn, SamplingBatch, draw, sample
from bramley.engine.sampling.logprobs import MAX_TOP_LOGPROBS, Draw, read_scores, score
from bramley.engine.sampling.noise import noise_key
from bramley.engine.sampling.parameters import RowState, SamplingRow

__all__ = [
    "MAX_TOP_LOGPROBS", "Draw", "Drawn", "RowState", "SamplingBatch", "SamplingRow", "draw", "noise_key", "read_scores",
    "sample", "score",
]  # fmt: skip
