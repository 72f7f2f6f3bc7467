"""Benchmarks: ratios to floors that are measured in the same run. Never absolute times, never in the test suite."""
