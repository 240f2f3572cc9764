"""The wire between client and target server: typed messages and their encoding.

Ints and bytes only; this package knows no tensors, sockets or models.
"""
