"""The site in a real browser: no code block and no table scrolls sideways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT
from tests.test_browser import browser

pytestmark = [pytest.mark.breadth, browser.needed]
FRAMES = """<title></title><script>
const jobs = %s, found = [];
async function look() {
  for (const [page, width] of jobs) {
    const frame = document.createElement("iframe");
    frame.style = `width:${width}px;height:900px;border:0`;
    const loaded = new Promise(done => frame.onload = done);
    frame.src = page;
    document.body.append(frame);
    await loaded;
    const inner = frame.contentDocument;
    const kinds = "pre, pre > code, table, img, .md-typeset__table, .md-typeset__scrollwrap";
    for (const one of inner.querySelector(".md-content").querySelectorAll(kinds)) {
      const more = Math.max(one.scrollWidth - one.clientWidth, one.getBoundingClientRect().right - width);
      if (one.clientWidth && more > 1) found.push([page, width, one.tagName, more, one.textContent.slice(0, 60)]);
    }
    const page_more = inner.documentElement.scrollWidth - width;
    if (page_more > 0) found.push([page, width, "page", page_more, ""]);
    frame.remove();
  }
  document.title = JSON.stringify({looked: jobs.length, found});
}
onload = look;
</script><body></body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return folder


def scrolling(site: Path, jobs: list[tuple[str, int]]) -> list[list[Any]]:
    (site / "frames.html").write_text(FRAMES % json.dumps(jobs))
    seen = browser.found(site, "frames.html", "--window-size=1600,1000", "--virtual-time-budget=600000")
    assert seen["looked"] == len(jobs)
    return seen["found"]


@pytest.mark.parametrize("width", [900, 1440])
def test_nothing_scrolls_sideways(site: Path, width: int) -> None:
    pages = sorted(
        str(path.relative_to(site)) for path in site.rglob("*.html") if path.name not in ("404.html", "frames.html")
    )
    assert len(pages) > 40
    assert scrolling(site, [(page, width) for page in pages]) == []


def test_nothing_of_the_first_page_scrolls_on_a_phone(site: Path) -> None:
    assert scrolling(site, [("index.html", 390)]) == []
