"""What the target's answer means: walking a verified tree and the rules for stopping.

This package knows no models, no sockets and no clocks.
"""
