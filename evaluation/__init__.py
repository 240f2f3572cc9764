"""The experiment harness: a configuration in; records, tables and plots out.

It uses only the public face of ``autodraft`` and knows no models, sockets or decoding.
"""
