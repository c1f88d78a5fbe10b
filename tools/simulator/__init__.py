"""The simulator: the product's own code in one process, with virtual time and one seeded scheduler.

``python -m tools.simulator`` plays fresh seeds. Read the modules in this order. :mod:`tools.simulator.scheduler`
decides who goes on. :mod:`tools.simulator.machine` has the processes and their database.
:mod:`tools.simulator.world` has the messaging service, the receivers' addresses, and recipients.
:mod:`tools.simulator.history` plays one history and exports its events. :mod:`tools.simulator.checker` judges them
and knows nothing of the product. :mod:`tools.simulator.shrinking` makes a failing history smaller and shows it.
:mod:`tools.simulator.mutants` has protocols that are wrong on purpose. :mod:`tools.simulator.command` is the command.
"""
