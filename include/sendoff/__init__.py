"""Messaging campaigns: from a warehouse query to a reconciled report, without Airflow.

Read the modules in the order in which data meets them: ``query`` and ``warehouse``, ``identifiers``, ``columns``,
``parameters``, ``audience``, ``campaign``, ``period``, ``sample``, ``launch``, ``sending``, ``rendering``, ``reach``,
``preview``, ``preview_text``; then ``wire``, ``keys``, ``expiry``, ``token_endpoint``, ``auth``, ``transport``,
``outcome``, ``client`` and ``dispatch``; then ``postbacks``, ``endpoint``, ``group_commit``, ``receiver``, ``fold``,
``reconcile``, ``figures``, ``report`` and ``picture``.
``ledger`` is beside them all.
"""

__version__ = "0.1.0"
