"""Decisions about launches, and the limits of a connection."""
