"""Messaging campaigns without Airflow, from a warehouse query to a reconciled report.

.. code-block:: python

    app = sendoff.connect(ledger="sqlite:///ledger.db")
    launch = app.prepare(campaign, name="lapsed_buyers", audience=frame, period="2026-11-16/2026-11-23")
    launch.send()

The names in ``__all__`` are the public library, listed in ``__init__.pyi``. They are imported on first use.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
