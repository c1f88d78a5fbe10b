"""What a page says about a launch: its messages, what holds it, and when it goes on."""
