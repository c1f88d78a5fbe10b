"""Mutants of the core packages: one wrong line each, which the tests must notice."""
