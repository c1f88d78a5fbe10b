"""Dispatch: claim a request, send it, record the outcome."""
