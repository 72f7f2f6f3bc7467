"""The hot path may not grow unnoticed. Times are noisy, so what is counted is executed instructions: see `counting`."""
