"""The few things that touch the world: the clock, randomness, waiting. One file per colour."""
