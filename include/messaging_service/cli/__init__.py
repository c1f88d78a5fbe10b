"""The `messaging-service` command."""
