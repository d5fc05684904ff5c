"""What the user specifies about a source. Each value is used, confirms the source, or is refused.

No value is ignored. `hints` checks form and agreement of all values before a file is opened. `variables` puts names and
generation into the source. `used` compares settings with the optimizer that is migrated. All of it happens before
anything is written.
"""
