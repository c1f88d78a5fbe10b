"""Sendoff's Airflow provider. No other code of Sendoff imports Airflow.

Airflow reads DAG files, and with them these modules, every half minute. So code that only a running task needs is
imported by that task.
"""

SERVICE = "sendoff_default"
LEDGER = "sendoff_ledger"
RECEIVER = "sendoff_receiver"
"""The default connections."""
