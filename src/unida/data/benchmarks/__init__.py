"""The published benchmarks, from definition to files: the one module to import.

`spec` holds what is published (read from `splits/*.json`), `files` finds the images on disk, `verify` compares the two.
"""

from unida.data.benchmarks.files import Listing, domain_files, listed_files, locate
from unida.data.benchmarks.spec import Benchmark, Domain, Part, Role, RoleCounts, available, load_benchmark
from unida.data.benchmarks.verify import VerifyReport, verify

__all__ = [
    "Benchmark",
    "Domain",
    "Listing",
    "Part",
    "Role",
    "RoleCounts",
    "VerifyReport",
    "available",
    "domain_files",
    "listed_files",
    "load_benchmark",
    "locate",
    "verify",
]
