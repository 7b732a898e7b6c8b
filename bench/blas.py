"""The BLAS that Bramley puts under MLX, for a peer to be started with, so that both compute with the same one."""

from pathlib import Path

from bramley.worker import blas


def preload(cache_dir: Path, threads: int) -> str:
    """Path of the library for LD_PRELOAD, built under ``cache_dir``; empty where Bramley uses MLX's own.

    Raises ValueError when it should be there and cannot be had.
    """
    report = blas.preload(cache_dir, "auto", threads)
    if report.shim:
        return next(str(path.resolve()) for path in (cache_dir / "blas").glob("*.so"))
    if report.notes:
        raise ValueError(f"{' '.join(report.notes)} A fair race needs it; or measure mlx_lm-installed.")
    return ""
