"""Faster forward passes: the numbers of mlx-lm, its own functions where the case is not plain, and no trace left."""

import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models.llama
import numpy as np
import pytest
from mlx.nn.layers.positional_encoding import RoPE
from mlx_lm.models.activations import swiglu
from mlx_lm.models.base import create_causal_mask, scaled_dot_product_attention
from mlx_lm.models.cache import QuantizedKVCache
from mlx_lm.models.rope_utils import Llama3RoPE, SuScaledRoPE
from mlx_lm.utils import load_model

from bramley.domain.wire import Submit
from bramley.engine import fast
from bramley.engine.fast.attention import attention
from bramley.engine.fast.powers import exp2, fast_swiglu
from bramley.engine.fast.rotary import rotate
from tests.engine.conftest import MakeEngine
from tests.support.oracle import GREEDY, Oracle, run_to_end, ties_until_equal

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere models are left as they are")

LENGTHS = {"smollm2": (16, 40, 130)}
TINY_LENGTHS = (1, 2, 16, 40, 130, 200)
ANSWER = 16


@pytest.fixture(autouse=True)
def seed() -> None:
    mx.random.seed(0)


def prompt_of(length: int, salt: int) -> tuple[int, ...]:
    return tuple((index * 37 + salt * 101 + 11) % 500 + 3 for index in range(length))


def heads(rows: int, count: int, length: int, width: int = 16) -> mx.array:
    return mx.random.normal((rows, count, length, width))


def furthest(a: mx.array, b: mx.array) -> float:
    return float(np.abs(np.array(a) - np.array(b)).max())


def padded_mask(rows: int, length: int, known: int) -> mx.array:
    """What mlx-lm's batch caches give: row n has n tokens of padding on the left."""
    mask: mx.array = create_causal_mask(length, known - length, left_padding=mx.arange(rows))
    return mask


def test_powers_of_two_are_right_to_rounding() -> None:
    x = mx.concatenate([mx.linspace(-115, 115, 100_001), mx.array([0.0, -0.5, 0.5, 1.0])])
    wanted = np.exp2(np.array(x, dtype=np.float64))
    assert np.max(np.abs(np.array(exp2(x), dtype=np.float64) / wanted - 1)) < 4e-7


def test_swiglu_is_that_of_mlx_lm_from_end_to_end_of_its_range() -> None:
    gate = mx.concatenate([mx.linspace(-300, 300, 8000), mx.linspace(-5, 5, 8000), mx.zeros((1,))])
    x = mx.random.normal(gate.shape)
    assert mx.allclose(fast_swiglu(gate, x), swiglu(gate, x), rtol=2e-6, atol=1e-7)


def test_swiglu_hands_on_what_is_not_a_number() -> None:
    gate = mx.zeros((9000,)).at[7].add(float("nan"))
    assert mx.isnan(fast_swiglu(gate, gate + 1)).sum().item() == 1


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_swiglu_of_other_types_is_computed_by_mlx_lm(dtype: mx.Dtype) -> None:
    gate, x = (mx.random.normal((9000,)).astype(dtype) for _ in range(2))
    assert mx.array_equal(fast_swiglu(gate, x), swiglu(gate, x))


@pytest.mark.parametrize("shared", [1, 2, 6])
@pytest.mark.parametrize(("length", "known"), [(1, 1), (1, 300), (7, 7), (63, 63), (64, 200), (65, 65), (200, 900)])
def test_attention_is_that_of_mlx_lm(shared: int, length: int, known: int) -> None:
    queries, keys, values = heads(1, 6, length), heads(1, shared, known), heads(1, shared, known, 24)
    for mask in ("causal", None):
        got, wanted = (
            function(3 * queries, 3 * keys, values, cache=None, scale=0.25, mask=mask)
            for function in (attention, scaled_dot_product_attention)
        )
        assert furthest(got, wanted) < 3e-5


@pytest.mark.parametrize(("length", "known"), [(1, 40), (70, 70), (70, 200)])
@pytest.mark.parametrize("form", ["boolean", "shared by rows", "two-dimensional", "added"])
def test_attention_takes_masks_of_batches_and_windows(form: str, length: int, known: int) -> None:
    queries, keys, values = heads(5, 6, length), heads(5, 2, known), heads(5, 2, known)
    window = create_causal_mask(length, known - length, window_size=33)
    mask = {
        "boolean": padded_mask(5, length, known),
        "shared by rows": window[None, None],
        "two-dimensional": window,
        "added": mx.where(padded_mask(5, length, known), mx.random.normal((length, known)), -mx.inf),
    }[form]
    got, wanted = (
        function(queries, keys, values, cache=None, scale=0.25, mask=mask)
        for function in (attention, scaled_dot_product_attention)
    )
    # a query of padding sees nothing, and what it gives is used by nobody
    sees = mx.broadcast_to(mask > -mx.inf if form == "added" else mask, (5, 1, length, known)).any(axis=-1)[..., None]
    assert furthest(mx.where(sees, got, 0), mx.where(sees, wanted, 0)) < 1e-5


def test_attention_takes_nothing_from_masked_keys() -> None:
    queries, keys, values = heads(2, 4, 70), heads(2, 2, 90), heads(2, 2, 90)
    mask = mx.broadcast_to(mx.arange(90) >= 30, (2, 1, 70, 90))
    hidden = mx.arange(90)[:, None] < 30
    before = attention(queries, keys, values, None, 0.25, mask)
    after = attention(queries, mx.where(hidden, 1e4, keys), mx.where(hidden, -1e4, values), None, 0.25, mask)
    assert mx.array_equal(before, after)


def test_attention_with_far_apart_scores_stays_finite() -> None:
    queries, keys, values = 100 * heads(1, 4, 70), 100 * heads(1, 4, 70), heads(1, 4, 70)
    got = attention(queries, keys, values, None, 1.0, "causal")
    assert furthest(got, scaled_dot_product_attention(queries, keys, values, None, 1.0, "causal")) < 1e-3


def test_attention_leaves_other_cases_to_mlx_lm() -> None:
    queries, keys, values = heads(1, 4, 8), heads(1, 2, 8), heads(1, 2, 8)
    half = [array.astype(mx.float16) for array in (queries, keys, values)]
    by_head = mx.random.normal((1, 4, 8, 8)) > 0
    cases: list[tuple[list[mx.array], Any, mx.array | None]] = [
        ([queries, keys, values], "causal", mx.random.normal((4,))),
        ([queries, keys, values], by_head, None),
        (half, "causal", None),
    ]
    for (q, k, v), mask, sinks in cases:
        got, wanted = (
            function(q, k, v, None, 0.25, mask, sinks) for function in (attention, scaled_dot_product_attention)
        )
        assert mx.array_equal(got, wanted)


def test_attention_leaves_quantized_caches_to_mlx_lm() -> None:
    cache = QuantizedKVCache(group_size=32, bits=8)
    keys, values = cache.update_and_fetch(heads(1, 2, 8, 32), heads(1, 2, 8, 32))
    queries = heads(1, 4, 8, 32)
    got, wanted = (
        # mlx-lm scales the queries it is given in place
        function(mx.array(queries), keys, values, cache=cache, scale=0.25, mask="causal")
        for function in (attention, scaled_dot_product_attention)
    )
    assert mx.array_equal(got, wanted)


class Ropes:
    """A model of rotary embeddings only."""

    def __init__(self, *ropes: Any) -> None:
        self._ropes = ropes

    def modules(self) -> tuple[Any, ...]:
        return self._ropes


SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def ropes() -> list[Any]:
    return [
        RoPE(16),
        RoPE(16, traditional=True, base=500.0, scale=0.5),
        RoPE(8),
        Llama3RoPE(16, 512, base=10000.0, scaling_config=SCALING),
    ]


def test_a_rotated_token_is_where_mlx_lm_has_it() -> None:
    plain, quick = ropes(), ropes()
    assert rotate(Ropes(*quick))
    for position in (0, 1, 77, 4000):
        for one, other in zip(plain, quick, strict=True):
            for rows in (1, 3):
                x = heads(rows, 4, 1)
                assert furthest(one(x, offset=position), other(x, offset=position)) < 2e-6


def test_prompts_and_rows_of_their_own_positions_are_rotated_by_mlx_lm() -> None:
    plain, quick = ropes(), ropes()
    rotate(Ropes(*quick))
    for one, other in zip(plain, quick, strict=True):
        prompt, rows = heads(1, 4, 9), heads(2, 4, 1)
        assert mx.array_equal(one(prompt, offset=5), other(prompt, offset=5))
        assert mx.array_equal(one(rows, offset=mx.array([3, 9])), other(rows, offset=mx.array([3, 9])))


def test_layers_that_rotate_alike_share_one_rotation() -> None:
    first, second, third, other = (RoPE(16), RoPE(16), RoPE(16, base=500.0), SuScaledRoPE(16))
    rotate(Ropes(first, second, third, other))
    assert first.rotation is second.rotation
    assert first.rotation is not third.rotation
    assert type(other) is SuScaledRoPE


@on_linux
@pytest.mark.parametrize("kind", ["tiny_llama", "tiny_gemma3", "tiny_mamba2", "smollm2"])
def test_greedy_tokens_are_those_of_mlx_lm(make_engine: MakeEngine, kind: str, request: pytest.FixtureRequest) -> None:
    lengths = LENGTHS.get(kind, TINY_LENGTHS)
    model: Any = load_model(request.getfixturevalue(kind))[0]
    oracles = {n: Oracle(model, prompt_of(length, n), ANSWER) for n, length in enumerate(lengths)}
    assert fast.apply(model, "cpu")
    engine = make_engine(model, prefill_chunk=64)
    for n, length in enumerate(lengths):
        submit = Submit(sequence=n, token_ids=prompt_of(length, n), max_tokens=ANSWER, sampling=GREEDY)
        assert engine.submit(submit) == []
    answers = run_to_end(engine)
    ties = sum(ties_until_equal(engine, prompt_of(k, n), answers[n], oracles[n]) for n, k in enumerate(lengths))
    assert ties <= max(1, 0.01 * ANSWER * len(lengths))


@on_linux
def test_one_note_is_given_for_each_trick_that_found_a_use(tiny_llama: Path, tiny_mamba2: Path) -> None:
    llama, mamba = (load_model(path)[0] for path in (tiny_llama, tiny_mamba2))
    assert len(fast.apply(llama, "cpu")) == len(fast.TRICKS)
    assert len(fast.apply(llama, "cpu")) == len(fast.TRICKS)
    assert len(fast.apply(llama, "cpu", ["attention"])) == 1
    assert not [note for note in fast.apply(mamba, "cpu") if "Attention" in note or "rotary" in note]


def test_on_a_gpu_the_model_is_left_as_it_is(tiny_llama: Path) -> None:
    model: Any = load_model(tiny_llama)[0]
    before = [type(module) for module in model.modules()]
    assert fast.apply(model, "gpu") == []
    assert [type(module) for module in model.modules()] == before


@on_linux
def test_undone_the_model_computes_to_the_bit_as_before(tiny_llama: Path) -> None:
    model: Any = load_model(tiny_llama)[0]
    classes = [type(module) for module in model.modules()]
    tokens = mx.arange(200)[None]
    before = model(tokens)
    fast.apply(model, "cpu")
    quick = model(tokens)
    assert not mx.array_equal(quick, before)
    assert furthest(quick, before) < 1e-3
    fast.undo(model)
    assert mx.array_equal(model(tokens), before)
    assert [type(module) for module in model.modules()] == classes


def test_another_model_in_the_process_and_mlx_lm_itself_are_not_touched(tiny_llama: Path) -> None:
    model, other = (load_model(tiny_llama)[0] for _ in range(2))
    tokens = mx.arange(200)[None]
    before = other(tokens)
    fast.apply(model, "cpu")
    assert mx.array_equal(other(tokens), before)
    assert mlx_lm.models.llama.scaled_dot_product_attention is scaled_dot_product_attention
    assert mlx_lm.models.llama.swiglu is swiglu
