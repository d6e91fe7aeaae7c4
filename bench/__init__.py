"""Benchmarks. They print ratios of one run's figures, because machines are shared and noisy."""
