"""Web pages for the person at this machine.

- ``layout`` renders templates, with security headers
- ``settings`` manages client IDs and apps
- ``launches`` lists launches, each made of campaigns
- ``campaigns`` shows campaigns
- ``messages`` shows each message as it looks on its device
- ``search`` finds campaigns and devices
- ``requests`` shows the request log
- ``faults`` shows and changes the clock and the injected faults
"""

from messaging_service.pages.layout import error_page, wants_page
from messaging_service.pages.site import page_routes

__all__ = ["error_page", "page_routes", "wants_page"]
