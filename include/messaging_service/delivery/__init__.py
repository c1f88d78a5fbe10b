"""Delivery: runs of a campaign, simulated outcomes, webhook calls, and post-backs."""
