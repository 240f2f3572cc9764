"""Models and tokenizers: the only package that imports transformers and bitsandbytes.

Knows nothing of sockets, policies or prices. Importing the package alone imports neither torch nor
transformers; its modules do.
"""
