"""Faults that the service injects on request."""
