"""The check of MLX's products."""

import mlx.core as mx
import pytest

from bramley.domain.errors import ModelLoadError
from bramley.runners.product import check_product


def test_right_products_pass() -> None:
    check_product()


def test_wrong_products_name_the_option_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no wrong BLAS to be had that loads, so MLX is told to forget every third row."""
    right = mx.array.__matmul__

    def wrong(left: mx.array, other: mx.array) -> mx.array:
        got = right(left, other)
        return got * (mx.arange(got.shape[0])[:, None] % 3 > 0)

    monkeypatch.setattr(mx.array, "__matmul__", wrong)
    with pytest.raises(ModelLoadError, match="--blas off"):
        check_product()
