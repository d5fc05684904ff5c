"""What a name alone shows: whether it is a URL, and which parts of it may be shown."""

from __future__ import annotations

import re

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def is_url(path: str) -> bool:
    return _URL.match(path) is not None


def is_signed(path: str) -> bool:
    """Whether it is a URL with something after a question mark, which is valid only for this one file."""
    return is_url(path) and "?" in path


def shown(text: str) -> str:
    """Return a text without the credentials of URLs in it: user, password, and everything after a question mark."""
    # Each begins at a word and matches all that follows: names of 100,000 letters are scanned once.
    text = re.sub(r"(\b\w+://)[^/\s@]*@", r"\1", text)
    return re.sub(r"(\b\w+://[^\s?'\"]*)(?:\?[^\s'\",;)]*)?", r"\1", text)
