"""Files of a release: a bill of materials, notes from the changelog, and the documentation of all versions.

The workflow .github/workflows/release.yml runs them.
"""
