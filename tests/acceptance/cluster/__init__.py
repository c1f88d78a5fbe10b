"""docker-compose.yml without Docker: each container runs in its own namespaces on this machine."""
