"""docker-compose.yml without Docker: each container in namespaces of its own on this machine."""
