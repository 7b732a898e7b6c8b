"""Whether a model's rows can decode together: tried on the model itself, as its code cannot be asked."""

from typing import Final

import mlx.core as mx

from bramley.domain.sampling import Sampling
from bramley.engine.batch import Batch
from bramley.engine.group import Newest
from bramley.engine.model import TextModel
from bramley.engine.sequence import Sequence

# Unlike lengths, so that a row whose padding or positions are wrong has logits that are far off. The last one joins
# the first two, which are read together.
_LENGTHS: Final = (2, 13, 5)
_FED: Final = (3, 5, 7)
# Rounding in half precision or in an expert's choice stays well below; another row's tokens do not.
_TOLERANCE: Final = 0.1


def why_alone(model: TextModel) -> str | None:
    """Why rows of this model must decode one by one, for a sentence; None if they can share a pass.

    Two rows of unlike lengths are read together and decode, and a third joins them; the logits of the padded rows are
    held against those without company.
    """
    if not model.can_merge:
        return "its caches cannot be merged"
    try:
        apart, together = _apart(model), _together(model)
        error = mx.linalg.norm(apart - together, axis=-1) / mx.linalg.norm(apart, axis=-1)
        worst = float(mx.max(error))
    except (ValueError, TypeError, AttributeError, IndexError, RuntimeError) as problem:
        return f"a batch raised {type(problem).__name__}"
    # not the other way round: an error that is no number is no success
    return None if worst <= _TOLERANCE else "in a batch it gave other answers"


def _rows(model: TextModel) -> list[Sequence]:
    prompts = [tuple((7 * i + n) % model.vocab_size for i in range(length)) for n, length in enumerate(_LENGTHS)]
    return [Sequence(n, prompt, 1, Sampling(), frozenset(), 0.0) for n, prompt in enumerate(prompts)]


def _together(model: TextModel) -> mx.array:
    """Logits [draws, vocabulary] of the first and the last row."""
    batch = Batch(model)
    first, second, third = _rows(model)
    newest = Newest(mx.array(_fed(model), dtype=mx.int32), (first, second, third))
    whole = batch.read_whole([second, first])
    sequences, logits = batch.decode([first, second], newest)
    seen = [whole[1], logits[sequences.index(first)]]
    read = batch.read(third, _LENGTHS[2])
    sequences, logits = batch.decode([first, second, third], newest)
    seen += [logits[sequences.index(first)], logits[sequences.index(third)]]
    if read is not None:
        seen.append(read[0])
    mx.eval(seen)
    return mx.stack(seen).astype(mx.float32)


def _apart(model: TextModel) -> mx.array:
    """The same draws, each row in one pass of its own over its prompt and the tokens it is fed."""
    first, _, third = (
        model.all_logits(mx.array([[*row.prompt, token, token]]), model.make_caches())[0, len(row.prompt) - 1 :]
        for row, token in zip(_rows(model), _fed(model), strict=True)
    )
    return mx.stack([first[0], first[1], first[2], third[1], third[0]]).astype(mx.float32)


def _fed(model: TextModel) -> list[int]:
    return [token % model.vocab_size for token in _FED]
