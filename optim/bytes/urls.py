"""What a name alone shows: whether it is a URL, and what of it may be shown."""

from __future__ import annotations

import re

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def is_url(path: str) -> bool:
    return _URL.match(path) is not None


def is_signed(path: str) -> bool:
    """Whether it is a URL with something after a question mark, which is good for this one file alone."""
    return is_url(path) and "?" in path


def shown(text: str) -> str:
    """A text without what URLs in it hold of credentials: user, password, and everything after a question mark."""
    # Each begins at a word and takes what follows whole: names of 100,000 letters are looked through once.
    text = re.sub(r"(\b\w+://)[^/\s@]*@", r"\1", text)
    return re.sub(r"(\b\w+://[^\s?'\"]*)(?:\?[^\s'\",;)]*)?", r"\1", text)
