"""Distilling the embedded draft: chats written by the target, a student cut from it, training.

Every module here serves ``scripts/train_embedded_draft.py``; nothing of it is needed to run
AutoDraft.
"""

import autodraft  # noqa: F401  # before torch: it makes idle threads sleep instead of spin
