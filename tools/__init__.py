"""Tools of the repository: crash tests, benchmarks, and the generator of reference pages."""
