"""How long things take: forwards by rows and context, and the link.

Measured once, kept on disk, corrected from served rounds. This package knows numbers, clocks and
files; it knows no models, sockets or messages: whoever measures hands in what is timed.
"""
