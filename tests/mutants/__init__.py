"""`python -m tests.mutants [SEEDS]`: plant every bug of `interlock.testing.sim.mutants`, and see each of them found."""
