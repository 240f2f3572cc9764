"""Where AutoDraft keeps its files, and the access token: everything read from the environment.

No other module but ``cli.py`` reads environment variables. This module knows no models and no
sockets, and creates nothing but the token file.

Variables:
    AUTODRAFT_CACHE_DIR: Prepared models (default: the user's cache folder).
    AUTODRAFT_DATA_DIR: Profiles, reference curves, trade-off files (default: the data folder).
    AUTODRAFT_CONFIG_DIR: The access token (default: the user's configuration folder).
    AUTODRAFT_BENCH_DIR: Benchmark question files, read only. No default.
    AUTODRAFT_TOKEN: The access token itself; wins over the token file.
"""

import ipaddress
import os
import secrets
from pathlib import Path
from typing import Final

import platformdirs

from autodraft.errors import ConfigError

TOKEN_VARIABLE: Final = "AUTODRAFT_TOKEN"
TOKEN_FILE_NAME: Final = "token"
_APPLICATION: Final = "autodraft"
_TOKEN_BYTES: Final = 32
_WAIT_VARIABLES: Final = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
_SPINS: Final = "10000"


def _folder(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or default).expanduser().absolute()


def cache_dir() -> Path:
    """Return the folder of prepared models (it may not exist yet)."""
    return _folder("AUTODRAFT_CACHE_DIR", platformdirs.user_cache_dir(_APPLICATION))


def data_dir() -> Path:
    """Return the folder of profiles and curves (it may not exist yet)."""
    return _folder("AUTODRAFT_DATA_DIR", platformdirs.user_data_dir(_APPLICATION))


def config_dir() -> Path:
    """Return the folder that holds the access token (it may not exist yet)."""
    return _folder("AUTODRAFT_CONFIG_DIR", platformdirs.user_config_dir(_APPLICATION))


def bench_dir() -> Path | None:
    """Return the folder of benchmark question files, or None when the user named none."""
    value = os.environ.get("AUTODRAFT_BENCH_DIR")
    return Path(value).expanduser().absolute() if value else None


def token_path() -> Path:
    """Return the path of the token file."""
    return config_dir() / TOKEN_FILE_NAME


def token_origin() -> str:
    """Say in words where ``find_token`` finds the token."""
    return TOKEN_VARIABLE if os.environ.get(TOKEN_VARIABLE) else str(token_path())


def find_token(variable: str = TOKEN_VARIABLE) -> str | None:
    """Return this user's access token, or None when there is none yet.

    The environment variable wins; else the file that a target server of the same user on the same
    machine made.

    Raises:
        ConfigError: If the token file exists but cannot be read.
    """
    if value := os.environ.get(variable):
        return value.strip()
    path = token_path()
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            f"The token file {path} cannot be read ({error.strerror}). "
            f"Mend its permissions, or set {variable}."
        ) from error


def ensure_token() -> str:
    """Return this user's access token; make one (file mode 0600) on the first call.

    Servers that start at once agree on one: the file appears whole or not at all, and the first
    one stays.

    Raises:
        ConfigError: If the token file can be neither read nor written.
    """
    if token := find_token():
        return token
    path = token_path()
    draft = path.with_name(f".{TOKEN_FILE_NAME}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
        try:
            os.link(draft, path)
        except FileExistsError:
            if find_token() is None:  # an empty file: no server ever leaves one behind
                draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The token file {path} cannot be written ({error.strerror}). Set "
            f"AUTODRAFT_CONFIG_DIR to a writable folder, or set {TOKEN_VARIABLE}."
        ) from error
    if token := find_token():
        return token
    raise ConfigError(f"The token file {path} is empty. Delete it and start again.")


def wait_briefly() -> None:
    """Let idle OpenMP threads spin a moment, then sleep; to be called before torch is imported.

    A forward is hundreds of short parallel pieces: waking a sleeping thread for each takes longer
    than the piece. A draft and a target that share a machine take turns: a thread that goes on
    spinning when its side has nothing to do takes a core from the other. Half a millisecond is
    enough for the first and too little to hurt the second (docs/performance.md). What the user has
    set stays.
    """
    if _WAIT_VARIABLES & os.environ.keys():
        return
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # what OpenMP runtimes other than GNU's go by
    os.environ["GOMP_SPINCOUNT"] = _SPINS


def client_token(host: str, variable: str = TOKEN_VARIABLE) -> str | None:
    """Return the token to show to the server at ``host``, or None when there is none.

    The token file is this machine's: it is read for a server on this machine only and never sent
    to another one, for which the environment variable must be set.

    Raises:
        ConfigError: If the token file exists but cannot be read.
    """
    if _is_this_machine(host):
        return find_token(variable)
    value = os.environ.get(variable)
    return value.strip() if value else None


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
