"""What a name says by itself: whether it is a URL, and what of it may be shown."""

from __future__ import annotations

import re

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def is_url(path: str) -> bool:
    return _URL.match(path) is not None


def is_signed(path: str) -> bool:
    """Whether it is a URL with something behind a question mark, which is good for this one file alone."""
    return is_url(path) and "?" in path


def shown(text: str) -> str:
    """A text without what URLs in it hold of credentials: user, password, and everything behind a question mark."""
    text = re.sub(r"(\w+://)[^/\s@]*@", r"\1", text)
    return re.sub(r"(\w+://[^\s?'\"]*)\?[^\s'\",;)]*", r"\1", text)
