"""Benchmarks: what is fast and what is not, as ratios within one run. Never a timed test."""
