"""The round loop: drafting at the user, verifying at the target, and the server that hosts it.

Prices, tables and experiments are not known here.
"""
