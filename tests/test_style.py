"""Words that the style guide replaces may only become fewer: `python -m tests.test_style --write` stores the counts.

Counted are docstrings, messages and pages: whole words, and not what is code in them. Names in code are nouns or verbs
of the field.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT

LIMITS = Path(__file__).with_name("style_limits.json")
PACKAGES = ("optim", "migrate", "bench", "dtopt_cli", "tools")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")
WORDS = {
    "say": r"says?|said|saying",
    "tell": r"tells?|told|telling",
    "carry": r"carry|carries|carried|carrying",
    "take for": r"(?:takes?|taken|took|taking) (?:for|as)",
    "believe": r"believes?|believed",
    "doubt": r"doubts?|doubted|doubtful",
    "deny": r"deny|denies|denied",
    "heed": r"heeds?|heeded",
    "pass over": r"pass(?:es|ed)? over",
    "settle": r"settles?|settled|decide with",
    "mend": r"mends?|mended",
    "beside": r"besides?",
    "behind": r"behind",
    "go on": r"go(?:es)? on|went on|going on|gone on",
    "lie": r"lies?",
    "stand": r"stands?|stood",
    "anew": r"anew",
    "likewise": r"likewise",
    "anyhow": r"anyhow",
    "otherwise": r"otherwise",
    "of its own": r"of (?:its|their|his|one's|somebody's|an? \w+'s|the \w+'s) own",
    "alike": r"alike",
    "apart": r"apart",
    "none": r"(?-i:none)|no such",
    "shall": r"shall",
    "roof": r"roofs?",
    "a person": r"(?:a|the) person|a person's|nobody|whoever",
}
"""The left column of the style guide: word -> its forms."""
NAMES = ["made", "found", "told", "said", "given", "held", "carried", "settled", "each", "own", "around", "apart"]
"""What the style guide has no variable, parameter, function or class named."""
FORMS = {word: re.compile(rf"\b(?:{forms})\b", re.IGNORECASE) for word, forms in WORDS.items()}
CODE = re.compile(
    r"```.*?```|`[^`]*`|--set \S+|\S+=none|https?://\S+"
    r"|\"none\"|\b(?:background|display|fill|max-width|stroke): none|default-src 'none'"  # HTML, CSS and SVG
    # the command, and keys of results and reports
    r"|(?:--|bench )roof|\broof\.json|\broof: |\broof $|\broofs?:|\"roofs\"|\bbeside:|\bdoubt:",
    re.DOTALL,
)
"""Code in a text, which no word of the style guide can replace."""


def _texts(path: Path) -> Iterator[str]:
    """Docstrings and messages of a module: texts of more than one word."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value


def _pages(name: str) -> Iterator[str]:
    path = ROOT / name
    for page in sorted(path.rglob("*.md")) if path.is_dir() else [path]:
        yield page.read_text(encoding="utf-8")


def counted(package: str) -> dict[str, int]:
    """How often each word occurs in a package, or in the pages."""
    if package == "docs":
        texts: Iterator[str] = (text for name in PAGES for text in _pages(name))
    else:
        texts = (text for path in sorted((ROOT / package).rglob("*.py")) for text in _texts(path))
    counts: Counter[str] = Counter()
    for text in texts:
        prose = CODE.sub("", text)
        for word, form in FORMS.items():
            counts[word] += len(form.findall(prose))
    return {word: count for word, count in counts.items() if count}


@pytest.mark.parametrize("package", [*PACKAGES, "docs"])
def test_words_that_style_replaces_only_become_fewer(package: str) -> None:
    limits = json.loads(LIMITS.read_text(encoding="utf-8"))[package]
    counts = counted(package)
    more = {word: (count, limits.get(word, 0)) for word, count in counts.items() if count > limits.get(word, 0)}
    assert sum(counts.values()) <= sum(limits.values()), f"word: (count, stored count): {more}; use the right column"
    assert counts.keys() <= limits.keys(), "these words were gone; use the right column"


def _names(tree: ast.AST) -> Iterator[str]:
    """Names of variables, parameters, functions and classes, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield f"{node.lineno}: {node.id}"
        elif isinstance(node, ast.arg):
            yield f"{node.lineno}: {node.arg}"
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield f"{node.lineno}: {node.name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_names_say_what_a_thing_is(package: str) -> None:
    vague = [
        f"{path.relative_to(ROOT)}:{name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in _names(ast.parse(path.read_text(encoding="utf-8")))
        if name.rpartition(" ")[2] in NAMES
    ]
    assert not vague, "name the thing: a layer, a slot, the matches"


def test_vague_names_are_seen() -> None:
    tree = ast.parse("def made(given, *, own=1):\n    return [each for each in given if (found := each)]")
    assert {name.rpartition(" ")[2] for name in _names(tree)} == {"made", "given", "own", "each", "found"}


def test_forms_are_whole_words() -> None:
    for word, whole, part in (("lie", "It lies there", "applies, earlier"), ("say", "Said so", "essay")):
        assert FORMS[word].search(whole)
        assert not FORMS[word].search(part)
    assert not FORMS["none"].search(CODE.sub("", "`none`, --set clipnorm=none"))


if __name__ == "__main__":
    counts = {package: counted(package) for package in (*PACKAGES, "docs")}
    if "--write" in sys.argv:
        LIMITS.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for package, words in counts.items():
        print(package, sum(words.values()), words)
