"""OpenLineage metadata of launches."""
