"""The slot-variable layout, written and read."""
