"""A messaging service, implemented from the service's document, that runs campaigns without reaching anyone.

``cli`` holds the commands, ``server`` starts the processes, and ``app`` connects the HTTP interface (``api``,
``pages``) with the packages behind it: ``auth``, ``campaigns``, ``delivery``, and ``faults``.
"""
