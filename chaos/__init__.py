"""The crash proof: launches sent while everything breaks, counted against the service's own record.

``python -m chaos`` runs it; ``docs/reliability.md`` says what each row does. Read the modules in this order:
:mod:`chaos.processes` starts the service, receivers and a database; :mod:`chaos.workers` are the processes that are
killed; :mod:`chaos.broken` are protocols that are wrong on purpose; :mod:`chaos.stage` is where a history plays;
:mod:`chaos.plays` plays one; :mod:`chaos.histories` lists them; :mod:`chaos.counting` counts; :mod:`chaos.table` shows;
:mod:`chaos.command` does it all.
"""
