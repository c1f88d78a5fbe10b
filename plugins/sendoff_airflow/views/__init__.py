"""Sendoff's pages in Airflow's UI: launches, suppressions with their reasons, and what waits for a person.

Every handler is an ordinary function. The server runs it in a thread, so that neither the ledger nor Matplotlib blocks
other requests. Every route except static files checks the user's login.
"""
