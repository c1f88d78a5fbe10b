"""The crash proof: launches sent while everything breaks, counted against the service's own record.

``python -m tools.chaos`` runs it; ``docs/operations/chaos-scenarios.md`` describes each row. Read the modules in this
order: :mod:`tools.chaos.processes` starts the service, receivers and a database; :mod:`tools.chaos.workers` are the
processes that are killed; :mod:`tools.chaos.mutants` are protocols that are wrong on purpose;
:mod:`tools.chaos.environment` is where a scenario runs; :mod:`tools.chaos.steps` are the functions that run one;
:mod:`tools.chaos.scenarios` lists them; :mod:`tools.chaos.counting` counts; :mod:`tools.chaos.table` shows;
:mod:`tools.chaos.command` does it all.
"""
