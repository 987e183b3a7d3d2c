"""Redis or Valkey as a child process, for whoever has no server to name.

`EmbeddedServer` runs one, `find_server` says which binary that would be, and `running_url` finds
the one that already runs. What can go wrong is an `EmbeddedError` whose message says what to do.
"""

from forebay_shared.embedded.finder import (
    EmbeddedError,
    NoServerFound,
    ServerBinary,
    check_server,
    find_server,
)
from forebay_shared.embedded.folder import (
    FolderInUse,
    FolderUnusable,
    default_state_dir,
    running_url,
)
from forebay_shared.embedded.process import StartFailed
from forebay_shared.embedded.server import EmbeddedServer

__all__ = [
    "EmbeddedError",
    "EmbeddedServer",
    "FolderInUse",
    "FolderUnusable",
    "NoServerFound",
    "ServerBinary",
    "StartFailed",
    "check_server",
    "default_state_dir",
    "find_server",
    "running_url",
]
