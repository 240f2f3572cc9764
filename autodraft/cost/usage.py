"""What requests used, in the form that the cost functions take.

The user's device takes no part in plain decoding and in what is drafted on the server: nobody pays
for it there, and its drafting is in the target's busy time.
"""

from typing import Final

from autodraft.cost.objective import Quantities
from autodraft.records import RequestRecord

_SERVER_ONLY: Final = "server_only"
_ON_SERVER: Final = "@server"


def takes_part(record: RequestRecord) -> bool:
    """Say whether the user's device drafts, even where a request left it nothing to draft."""
    return record.method != _SERVER_ONLY and not record.method.endswith(_ON_SERVER)


def quantities_of(record: RequestRecord) -> Quantities:
    """Return what a request used."""
    here = takes_part(record)
    return Quantities(
        output_tokens=record.output_tokens,
        target_busy_s=record.target_busy_s,
        target_held_s=record.target_held_s,
        total_s=record.total_s if here else 0.0,
        draft_j=record.draft_j if here else 0.0,
        target_j=record.target_j,
        uplink_bytes=record.uplink_bytes,
        downlink_bytes=record.downlink_bytes,
    )
