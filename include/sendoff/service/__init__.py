"""The External API of the messaging service: credentials, tokens, transport, client, and the wire format."""
