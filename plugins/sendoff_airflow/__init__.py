"""Sendoff's Airflow provider. No other code of Sendoff imports Airflow.

Airflow reads DAG files, and with them these modules, every half minute. So code that only a running task needs is
imported by that task. ``__init__.pyi`` lists the names of this package that are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

SERVICE = "sendoff_default"
LEDGER = "sendoff_ledger"
RECEIVER = "sendoff_receiver"
"""The default connections."""
