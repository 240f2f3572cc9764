"""One load at a time in a process.

While transformers' ``from_pretrained`` runs, it replaces methods of its own base class and puts
them back at the end. Two threads that load at once put back each other's replacement, and from
then on every model of the process comes up with untied weights. Whatever calls
``from_pretrained`` on a model holds this lock.
"""

import threading
from typing import Final

LOADING: Final = threading.Lock()
