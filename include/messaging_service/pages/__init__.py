"""What happened, and the settings, as web pages for the person at this machine.

``layout`` makes a page of a template, with the headers that keep it safe; ``settings`` the client IDs and apps;
``campaigns`` what was asked for; ``messages`` what a device got, as it would look; ``search`` finds either;
``requests`` the log.
"""

from messaging_service.pages.site import page_routes

__all__ = ["page_routes"]
