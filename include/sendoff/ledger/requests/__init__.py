"""Requests: each is claimed once, sent, and recorded, or is in doubt."""
