"""Conversion factors, each with a name, so that no bare number appears in a formula.

This module knows no quantities of its own.
"""

from typing import Final

SECONDS_PER_HOUR: Final = 3600.0
JOULES_PER_KWH: Final = 3.6e6
BYTES_PER_GB: Final = 1e9
TOKENS_PER_MILLION: Final = 1e6
MS_PER_S: Final = 1e3
US_PER_S: Final = 1e6
MJ_PER_J: Final = 1e3
