"""Both sides read again and compared: what proves a migration, and lends nothing to the rest."""
