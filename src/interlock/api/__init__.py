"""The faces: thin, in two colours, with no decisions of their own."""
