"""The messaging service itself, implemented from its document, to run campaigns without reaching anybody."""
