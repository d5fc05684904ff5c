"""What is known of a source: its own values, what the user specifies, and whether they agree."""
