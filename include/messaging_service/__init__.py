"""The messaging service itself, implemented from its document, to run campaigns without reaching anybody.

``cli`` has the commands, ``server`` starts the processes, and ``app`` joins the HTTP interface (``api``, ``pages``)
with what it serves: ``auth``, ``campaigns``, ``delivery``, and ``faults``.
"""
