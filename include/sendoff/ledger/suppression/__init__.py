"""Which recipients must not get a message, when a launch is frozen and when a request is claimed."""
