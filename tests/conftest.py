"""Settings of the whole suite."""

import os

# Some virtual machines announce AMX and then trap on it, which ends the process at the first bfloat16 product. Without
# AMX, the products are the same and the tests run everywhere. Read once by oneDNN, so it must stand before the first.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
