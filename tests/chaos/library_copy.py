"""Old and new side by side: a copy of the product whose function library has another name.

One comment in the library's text is changed, nothing else. Its hash and so its name differ, and
Redis runs both libraries on the same data, as in a rolling deploy.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.flow.processes import COMPONENTS

LIBRARY = Path("shared/forebay_shared/library")
COMMENT = "-- Another release, of which this line alone tells.\n"


@dataclass(frozen=True, slots=True)
class Product:
    """A checkout whose code runs; `library`: tells its function library from others."""

    folder: Path
    library: str


def product_in(folder: Path) -> Product:
    """The product of a checkout."""
    texts = sorted((folder / LIBRARY).glob("*.lua"))
    text = b"\n".join(path.read_bytes() for path in texts)
    return Product(folder, hashlib.sha256(text).hexdigest()[:12])


def copy_product(source: Path, folder: Path) -> Path:
    """A copy of the components in `folder`."""
    for component in COMPONENTS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source / component, folder / component, ignore=ignored)
    return folder


def other_release(source: Path, folder: Path) -> Product:
    """A copy of the product in `source` whose library says the same under another name."""
    copy_product(source, folder)
    last = sorted((folder / LIBRARY).glob("*.lua"))[-1]
    last.write_text(last.read_text() + COMMENT)
    return product_in(folder)
