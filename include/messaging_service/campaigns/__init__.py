"""Campaigns: fields, targeting, triggers, and what a recipient sees."""
