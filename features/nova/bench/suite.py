"""Benchmarks with a Nova: `selects` is part of `make bench`; `python -m features.nova.bench.boots` is not."""

from bench.suite import Benchmark, BenchmarksPart
from features.nova.bench import selects

HOSTS = 1000
CALLS = 3000  # of Nova's scheduler RPC

PART = BenchmarksPart(
    {
        "nova_selects": Benchmark(
            "calls of Nova's scheduler RPC, 1,000 hosts", 40, lambda sizes: selects.measure(HOSTS, CALLS)
        )
    }
)
