"""Find what the options name: two folders, or two domains of a benchmark. It reads no pixels."""

from dataclasses import dataclass
from pathlib import Path

from unida.data.benchmarks import Benchmark, load_benchmark
from unida.data.options import DataOptions
from unida.data.settings import LabelSets, names_left_out
from unida.errors import UserError


@dataclass(frozen=True)
class BenchmarkPair:
    """A benchmark's pair of domains under a setting, found from the options."""

    benchmark: Benchmark
    root: Path
    source: str
    target: str
    label_sets: LabelSets


def benchmark_pair(options: DataOptions) -> BenchmarkPair | None:
    """The benchmark that the options name, or None if they name two folders; any other combination is an error."""
    if options.benchmark is None:
        for option, value in (("--root", options.root), ("--pair", options.pair)):
            if value is not None:
                raise UserError(f"{option} needs --benchmark NAME: add it, or leave {option} out")
        for option, value in (("--source", options.source), ("--target", options.target)):
            if value is None:
                raise UserError(f"{option} DIR is missing: give two folders, or --benchmark NAME --root DIR --pair A:B")
        return None
    for option, given in (("--source", options.source), ("--target", options.target)):
        if given is not None:
            raise UserError(f"{option} and --benchmark exclude each other: give two folders, or a benchmark")
    if options.root is None:
        raise UserError(f"--root DIR is missing: the folder that holds {options.benchmark}")
    if options.pair is None:
        raise UserError("--pair SOURCE:TARGET is missing, for instance --pair amazon:dslr")
    benchmark = load_benchmark(options.benchmark)
    source, target = benchmark.parse_pair(options.pair)
    sets = benchmark.label_sets(options.setting)
    where = f"{benchmark.title} under {options.setting}"
    sets = sets.without(
        names_left_out(options.source_without, sets.source_classes, "--source-without", f"the source, {where}"),
        names_left_out(options.target_without, sets.target_classes, "--target-without", f"the target, {where}"),
    )
    return BenchmarkPair(benchmark, options.root, source, target, sets)
