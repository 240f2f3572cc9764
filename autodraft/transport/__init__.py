"""Moving messages over a WebSocket: the client's link and the server's door.

This package never imports torch and does not know what the messages mean.
"""
