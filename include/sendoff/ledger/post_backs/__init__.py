"""Post-backs: stored in blocks, added to totals once, and deleted when they are old."""
