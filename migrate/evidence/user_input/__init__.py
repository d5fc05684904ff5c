"""What the user says of a source. Each value is used, confirms what is so, or is refused; none is ignored.

`hints` checks form and agreement of all values before a file is opened, `variables` puts names and generation into the
source, `used` compares settings with the optimizer that is migrated. All of it happens before anything is written.
"""
