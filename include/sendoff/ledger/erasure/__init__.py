"""One person's data: its erasure and its export."""
