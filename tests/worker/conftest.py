"""Which tests belong to which system."""

import sys

# compilers, shared objects and processor affinity as Linux has them; elsewhere there is nothing to preload
collect_ignore = [] if sys.platform == "linux" else ["test_blas.py"]
