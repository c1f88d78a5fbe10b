"""The HTTP interface: the External API, the token endpoint, and the admin routes."""
