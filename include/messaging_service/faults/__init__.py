"""Faults: what the service does wrong on request."""
