"""What the target's answer means, and what it can be guessed from without a model.

Walking a verified tree, the rules for stopping, text piece by piece, and retrieval.

This package knows no models, no sockets and no clocks.
"""
