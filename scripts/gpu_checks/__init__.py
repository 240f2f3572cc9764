"""What AutoDraft does on a CUDA machine: losslessness, latency tables, a round over loopback.

Every module here serves ``scripts/gpu_check.sh``; nothing of it is needed to run AutoDraft. Models
have random weights: nothing here says anything about quality. Only ``wheels`` runs before the
packages that AutoDraft needs are known to be there, and it is run as a file.
"""

import autodraft  # noqa: F401  # before torch: it settles how long idle threads spin
