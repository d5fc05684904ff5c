"""The document of a run, for rows of any kind."""
