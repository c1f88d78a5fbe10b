"""Messaging campaigns without Airflow, from a warehouse query to a reconciled report."""

__version__ = "0.1.0"
