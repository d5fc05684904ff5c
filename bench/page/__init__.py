"""Render results as one page for a browser, as Markdown and as CSV."""
