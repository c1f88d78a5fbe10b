"""Audience: Arrow batches become identifier sets, and the sets become segments."""
