"""What people read: a parity report on the terminal, as JSON, JUnit XML and HTML; what a config means.

Nothing here decides a number or whether a check passes.
"""
