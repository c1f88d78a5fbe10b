"""The messaging service itself, implemented from its document, to run campaigns without reaching anybody.

The modules, in the order that a campaign meets them:

``cli``         the commands; ``server`` opens the port and starts the deliveries process
``app``         the routes; ``replies`` the envelope of their answers; ``requests`` the record of what came in
``keys``        public keys and what they may sign; ``clients`` apps and client IDs; ``tokens`` both grants
``names``       each parameter name that the document does not show; ``fields`` each parameter and its check
``campaigns``   the create request; ``executions`` the execute request; ``schedule`` when a campaign is sent
``directory``   the devices there are; ``targeting`` the devices that a campaign is for
``behaviour``   who receives and who opens, by chance but reproducibly
``deliveries``  a due run becomes sends and post-backs; ``postbacks`` the sender; ``worker`` their process
``visitors``    who may look into the service; ``pages`` what happened, and the settings, for a person
``admin``       what happened, as JSON; ``store`` the tables; ``clock`` the time
"""
