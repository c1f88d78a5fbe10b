"""Hooks for the connections of the service, the ledger, the receiver, and the warehouse."""
