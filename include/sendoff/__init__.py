"""Messaging campaigns: from a warehouse query to a reconciled report, without Airflow."""

__version__ = "0.1.0"
