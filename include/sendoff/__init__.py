"""Messaging campaigns: from a warehouse query to a reconciled report, without Airflow.

Read the modules in the order in which data meets them: ``query`` and ``warehouse``, ``identifiers``, ``columns``,
``parameters``, ``audience``, ``campaign``, ``period``, ``people_file``, ``shares``, ``left_out``, ``segments``,
``gates``, ``sample``, ``launch``, ``sending``, ``rendering``, ``reach``, ``preview``, ``preview_text``; then ``wire``,
``keys``, ``expiry``, ``token_endpoint``, ``auth``, ``transport``, ``outcome``, ``client``, ``sender``, ``dispatch``,
``spread``, ``control`` and ``lookup``; then ``postbacks``, ``endpoint``, ``group_commit``, ``receiver``, ``fold``,
``reconcile``, ``silence``, ``figures``, ``report`` and ``picture``.
``ledger`` and ``metrics`` are beside them all.
"""

__version__ = "0.1.0"
