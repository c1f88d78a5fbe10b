"""Launch: plan what a period sends, leave recipients out, check the gates, and show a preview."""
