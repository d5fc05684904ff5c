"""What is known of a source: its own values, what the user says, and whether they agree."""
