"""How memory is divided, and what each kind of layer is taken to cost."""

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from bramley.domain.memory import reuse_bytes
from bramley.engine import memory
from bramley.engine.kv import KvCost
from bramley.engine.model import TextModel

GIB = 2**30


@pytest.fixture(autouse=True)
def cache_limit() -> Iterator[None]:
    before = mx.set_cache_limit(GIB)
    yield
    mx.set_cache_limit(before)


def test_two_thirds_of_what_weights_leave_are_for_caches() -> None:
    plan = memory.arrange(limit=0, usable=16 * GIB, weights=4 * GIB)
    assert (plan.total, plan.kv, plan.reuse, plan.wired) == (16 * GIB, 8 * GIB, 32 << 20, 0)
    assert plan.note == (
        "Memory: 8.0 GiB for the caches of running requests, of 16.0 GiB in all; freed buffers are kept up to 32 MiB."
    )


def test_a_gpu_may_keep_a_sixteenth_of_what_was_freed_and_a_cpu_little() -> None:
    assert (reuse_bytes(16 * GIB, "gpu"), reuse_bytes(16 * GIB, "cpu"), reuse_bytes(1, "cpu")) == (GIB, 32 << 20, 1)


def test_a_limit_stands_for_the_whole_and_weights_that_fill_it_leave_a_little() -> None:
    assert memory.arrange(limit=10 * GIB, usable=16 * GIB, weights=4 * GIB).kv == 4 * GIB
    assert memory.arrange(limit=10 * GIB, usable=16 * GIB, weights=12 * GIB).kv == GIB // 2


@pytest.mark.parametrize(
    ("kind", "cost"),
    [
        # 2 layers of keys and values, 2 heads, 16 wide, 4 bytes each
        ("tiny_llama", KvCost(full=2 * 2 * 2 * 16 * 4)),
        # of 4 layers every second has a window of 32 tokens
        ("tiny_gemma3", KvCost(full=2 * 256, windows=((32, 256), (32, 256)))),
        # 2 layers: 3 steps of 160 convolved channels, and 8 heads of 16 x 16
        ("tiny_mamba2", KvCost(state=2 * 4 * (3 * 160 + 8 * 16 * 16))),
    ],
)
def test_a_layers_cost_is_read_off_its_cache(kind: str, cost: KvCost, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(kind)
    assert TextModel(load_model(path)[0]).cost == cost
