"""The versioned object cache: large values move between an app's processes by reference.

Values are immutable files in shared memory, mapped where they are read. A `Directory` in the
driver knows all keys, versions and files; every process has a `Client`.
"""

from forage.app.cache.client import Client
from forage.app.cache.directory import (
    OPERATIONS,
    SLOW_OPERATIONS,
    Directory,
    Usage,
)
from forage.app.cache.opening import open_directory
from forage.app.cache.refs import Parcel, Ref, Update
from forage.app.cache.serial import INLINE_LIMIT, dumps, loads
from forage.app.cache.store import Places, Store

__all__ = [
    "INLINE_LIMIT",
    "OPERATIONS",
    "SLOW_OPERATIONS",
    "Client",
    "Directory",
    "Parcel",
    "Places",
    "Ref",
    "Store",
    "Update",
    "Usage",
    "dumps",
    "loads",
    "open_directory",
]
