"""The messaging service itself, implemented from its document, to run campaigns without reaching anybody.

The modules, in the order that a campaign meets them:

``cli``         the commands; ``server`` opens the port and starts the other processes, its ``children``
``answering``   the process that answers; ``app`` the routes; ``openapi`` their description
``replies``     the envelope of the answers; ``requests`` the record of what came in
``keys``        public keys and what they may sign; ``clients`` apps and client IDs, with their ``scopes``
``tokens``      both grants; ``token_requests`` their endpoint; ``callers`` who a request comes from
``names``       each parameter name that the document does not show; ``fields`` each parameter and its check
``campaigns``   the create request; ``executions`` the execute request; ``schedule`` when a campaign is sent
``directory``   the devices there are; ``targeting`` the devices that a campaign is for
``behaviour``   who receives and who opens, by chance but reproducibly
``deliveries``  a due run becomes sends and post-backs; ``postbacks`` the sender; ``worker`` their process
``claims``      which process works on what, so that nothing is sent twice
``faults``      what goes wrong on request; ``breakdowns`` with requests, ``spoiling`` with post-backs
``visitors``    who may look into the service; ``pages`` what happened, and the settings, for a person
``admin``       what happened, as JSON; ``store`` the tables; ``clock`` the time
"""
