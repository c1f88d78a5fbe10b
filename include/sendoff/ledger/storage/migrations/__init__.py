"""The migrations of the ledger's tables, run by ``sendoff migrate``."""
