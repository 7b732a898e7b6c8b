"""A worker's start up to its first products: usage blas_probe.py CACHE MODE THREADS. Says what it found, in JSON."""

import ctypes
import json
import sys
from pathlib import Path

import numpy as np

from bramley.worker import blas


def main() -> None:
    cache, mode, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    assert mode in ("auto", "off")
    report = blas.preload(cache, "off" if mode == "off" else "auto", threads)
    loaded = "mlx.core" in sys.modules
    # the order is the point: MLX takes the BLAS that is there when it is loaded
    from bramley.runners.product import check_product  # noqa: PLC0415

    before = report.products()
    check_product()
    (library,) = (Path(np.__file__).parent.parent / "numpy.libs").glob("libscipy_openblas64_*.so")
    found = {
        "name": report.name,
        "threads": report.threads,
        "notes": report.notes,
        "products": report.products() - before,
        "loaded_mlx": loaded,
        "numpy_threads": ctypes.CDLL(str(library)).scipy_openblas_get_num_threads64_(),
        "global": hasattr(ctypes.CDLL(None), "blas_memory_alloc"),
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
