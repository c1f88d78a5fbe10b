"""Sendoff inside Airflow: the only code of Sendoff that imports Airflow.

What only a running task needs is imported by that task. Airflow reads DAG files, and with them these modules, again
every half minute.
"""

SERVICE = "sendoff_default"
LEDGER = "sendoff_ledger"
RECEIVER = "sendoff_receiver"
"""The connections that are used where no other is named."""
