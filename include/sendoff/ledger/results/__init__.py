"""Verdicts, comparisons, lists of launches, and the health of the post-back feeds."""
