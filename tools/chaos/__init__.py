"""The crash tests: launches are sent while everything breaks, and compared with the service's own record.

``python -m tools.chaos`` runs them, and ``docs/operations/chaos-scenarios.md`` describes each row. Read the modules
in this order. :mod:`tools.chaos.processes` starts the service, receivers, and a database. :mod:`tools.chaos.workers`
has the processes that are killed. :mod:`tools.chaos.mutants` has protocols that are wrong on purpose.
:mod:`tools.chaos.environment` is where a scenario runs, and :mod:`tools.chaos.steps` has the functions that run one.
:mod:`tools.chaos.scenarios` lists the scenarios. :mod:`tools.chaos.counting` counts duplicates and losses, and
:mod:`tools.chaos.table` shows them. :mod:`tools.chaos.command` is the command.
"""
