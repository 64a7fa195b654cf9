"""Benchmarks: figures come from here, each with its machine, versions and seeds."""
