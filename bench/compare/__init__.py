"""Two results side by side: what became faster, what slower, and what cannot be said."""
