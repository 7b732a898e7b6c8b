"""One matrix product of MLX against a plain one: a BLAS made for another processor can be wrong without a word."""

import mlx.core as mx
import numpy as np

from bramley.domain.errors import ModelLoadError

# even sizes, one row as in decoding, odd sizes
_SIZES = ((64, 96, 128), (1, 576, 192), (7, 33, 129))


def check_product() -> None:
    """Raises ModelLoadError, which says what to do, when MLX's float32 products on this device are wrong."""
    random = np.random.default_rng(0)
    for rows, inner, columns in _SIZES:
        left = random.standard_normal((rows, inner)).astype(np.float32)
        right = random.standard_normal((inner, columns)).astype(np.float32)
        wanted = np.einsum("ij,jk->ik", left.astype(np.float64), right.astype(np.float64), optimize=False)
        plain = mx.array(left) @ mx.array(right)
        transposed = mx.array(left) @ mx.array(np.ascontiguousarray(right.T)).T
        # a GPU may multiply with ten bits of mantissa
        near = (np.allclose(np.array(got), wanted, rtol=1e-2, atol=1e-1) for got in (plain, transposed))
        if not all(near):
            raise ModelLoadError(
                f"MLX computes a wrong product of {rows} x {inner} by {inner} x {columns} float32 numbers on this "
                "machine: start with `--blas off`, and please report it."
            )
