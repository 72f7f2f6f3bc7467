"""Pure decisions: numbers in, answers out. No clock, no randomness, no input or output."""
