"""Train the embedded draft: distil a small student from the embedded target, on CPU, offline.

    python scripts/train_embedded_draft.py --write-minutes 30 --minutes 60
    python scripts/train_embedded_draft.py --samples chats.npz --minutes 60 --ship

The target writes chats, those that share an eight-word run with a benchmark question are dropped,
a student is cut from the target's layers and trained on the rest, and what it achieves on chats
held out is reported. Everything lands in the work folder; --resume goes on where a run stopped,
--ship replaces the weights in this repository. Needs the repository's environment only.
"""

import sys

from distillation.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
