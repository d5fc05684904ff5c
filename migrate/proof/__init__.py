"""Prove a migration: read both sides again and compare them. Shares no code with the rest."""
