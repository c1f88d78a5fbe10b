"""Sendoff's pages inside Airflow's UI: what was sent, what was left out and why, and what waits for a person.

Every handler is an ordinary function, which the server runs in a thread, so that neither the ledger nor Matplotlib
blocks other requests. Every route except those of static files checks who is logged in.
"""
