"""Draft trees as arrays: what they are, how they grow, who sees whom.

This package knows no sockets, models, prices or clocks.
"""
