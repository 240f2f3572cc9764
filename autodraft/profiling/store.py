"""Profiles on disk: one JSON file for each thing that was measured.

The key says in words what a profile holds for: hardware, versions, model. What was written under
another key or schema counts as missing and is measured again; a damaged file is an error. The
folder is the caller's; this module measures nothing.
"""

import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from autodraft.errors import ProfileError
from autodraft.profiling.tables import LatencyTable

SCHEMA: Final = 3
FOLDER: Final = "profile"
"""Name of the folder inside that of AutoDraft's data."""
_NAME_LENGTH: Final = 60
_HASH_LENGTH: Final = 12


@dataclass(frozen=True)
class StoredTable:
    """A latency table as it is kept.

    Attributes:
        table: The times.
        calls: Timed forwards for each entry, at least.
        measured_at: When, ISO 8601 in UTC; empty where it was measured just now.
        extra: Whatever else was found out with it.
    """

    table: LatencyTable
    calls: int
    measured_at: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


def profile_path(folder: Path, kind: str, key: str) -> Path:
    """Return the file of one profile: readable, and one for each key."""
    words = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")[:_NAME_LENGTH].rstrip("-")
    digest = hashlib.sha256(key.encode()).hexdigest()[:_HASH_LENGTH]
    return folder / f"{kind}-{words}-{digest}.json"


def read_profile(folder: Path, kind: str, key: str) -> dict[str, Any] | None:
    """Return what was written under a key; None where that is nothing, or of another schema.

    Raises:
        ProfileError: If the file cannot be read or is damaged.
    """
    path = profile_path(folder, kind, key)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(content, dict):
        raise _damaged(path, "it holds no profile")
    own = (content.get("schema"), content.get("kind"), content.get("key"))
    return content if own == (SCHEMA, kind, key) else None


def write_profile(folder: Path, kind: str, key: str, content: Mapping[str, Any]) -> Path:
    """Write a profile, in place of an older one; the file appears whole or not at all.

    Args:
        folder: Where profiles are kept; made where it does not exist.
        kind: What was measured: ``draft``, ``target``, …
        key: What it holds for.
        content: Anything that JSON can hold; schema, kind, key and time are added.

    Raises:
        ProfileError: If it cannot be written.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    whole = {**content, "schema": SCHEMA, "kind": kind, "key": key, "measured_at": now}
    path = profile_path(folder, kind, key)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            draft.replace(path)
        finally:
            with contextlib.suppress(FileNotFoundError):  # it has its name
                draft.unlink()
    except OSError as error:
        raise ProfileError(
            f"The profile {path} cannot be written ({error.strerror}). Mend the folder's "
            "permissions, or name another one with AUTODRAFT_DATA_DIR."
        ) from error
    return path


def read_table(folder: Path, kind: str, key: str) -> StoredTable | None:
    """Return a latency table that was written; None and errors as ``read_profile``."""
    content = read_profile(folder, kind, key)
    if content is None:
        return None
    try:
        sizes = (content["rows"], content["contexts"], content["seconds"], content["padding"])
        extra = dict(content.get("extra") or {})
        return StoredTable(
            LatencyTable(*sizes), int(content["calls"]), str(content["measured_at"]), extra
        )
    except (KeyError, TypeError, ValueError) as error:
        path = profile_path(folder, kind, key)
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def write_table(folder: Path, kind: str, key: str, stored: StoredTable) -> Path:
    """Write a latency table, with the time of now; raises as ``write_profile``."""
    table = stored.table
    content = {
        "rows": table.rows.tolist(),
        "contexts": table.contexts.tolist(),
        "seconds": table.seconds.tolist(),
        "padding": table.padding.tolist(),
        "calls": stored.calls,
        "extra": dict(stored.extra),
    }
    return write_profile(folder, kind, key, content)


def _damaged(path: Path, reason: str) -> ProfileError:
    return ProfileError(
        f"The profile {path} cannot be used: {reason}. Delete the file, or measure again with "
        "FORCE_PROFILE_REFRESH=1 or `python -m autodraft profile --refresh`."
    )
