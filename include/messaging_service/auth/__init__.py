"""Client IDs, scopes, public keys, and access tokens."""
