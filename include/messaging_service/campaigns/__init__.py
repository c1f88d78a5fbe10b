"""Campaigns: their fields, targeting, triggers, and the messages that a recipient sees."""
