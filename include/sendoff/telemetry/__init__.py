"""What a process reports about itself: metrics, where they are exported, and logs."""
