"""Lineage: OpenLineage facts of each launch."""
