"""The document of a run, whatever kind of rows it holds."""
