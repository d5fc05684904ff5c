"""The page in a real browser: nothing overflows a phone, plots are as wide as their place, print gives pages.

Needs Chromium (`apt-get install chromium`, or CHROMIUM=/path/to/it); left out without it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bench.kinds import load
from bench.kinds import page as make
from tests.places import RESULTS
from tests.test_browser import browser

pytestmark = [pytest.mark.breadth, browser.needed]
RUNS = [RESULTS / "aa-6.json", RESULTS / "step-v1.json"]
MEASURE = """<script>
const page = document.documentElement, svgs = [...document.querySelectorAll("svg")].map(s => s.getBoundingClientRect());
const probe = document.querySelector("svg text"), style = getComputedStyle(probe);
document.title = JSON.stringify({
  inner: innerWidth, wide: page.scrollWidth, svgs: svgs.map(b => [b.left, b.right, b.height]), ink: style.fill,
  back: getComputedStyle(document.body).backgroundColor,
  small: Math.min(...[...document.querySelectorAll("svg text")].map(t =>
    parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a)),
  cards: [...document.querySelectorAll("figure")].map(f =>
    f.querySelector("svg").getBoundingClientRect().width / f.getBoundingClientRect().width),
  holes: [...document.querySelectorAll(".figures")].map(g => [g, [...g.children].map(c => c.getBoundingClientRect())])
    .filter(([g, rows]) => rows.length > 1 && Math.max(...rows.map(r => r.right)) - rows.at(-1).right > 1).length,
  scrolls: [...document.querySelectorAll(".scroll")].every(s => s.getBoundingClientRect().right <= innerWidth),
});
</script></body>"""


@pytest.fixture(scope="module")
def page() -> str:
    return make.html([(path.name, load(path)) for path in RUNS])


def measured(page: str, folder: Path, width: int, *words: str) -> dict[str, Any]:
    """What a script sees, which the page itself would not let run: its policy is taken out for that."""
    changed = re.sub(r"<meta http-equiv=.Content-Security-Policy.*?>", "", page).replace("</body>", MEASURE)
    (folder / "page.html").write_text(changed)
    # A window narrower than 500 px cannot be had; a frame can.
    (folder / "frame.html").write_text(
        f'<title></title><iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe>'
        "<script>onload = () => { document.title = frames[0].document.title }</script>"
    )
    return browser.found(folder, "frame.html", *words)


@pytest.mark.parametrize("width", [320, 390, 768, 1440])
def test_nothing_overflows(page: str, tmp_path: Path, width: int) -> None:
    seen = measured(page, tmp_path, width, "--window-size=1600,1000")
    assert seen["inner"] == width
    assert seen["wide"] <= width
    assert seen["scrolls"]
    assert seen["small"] >= 10.9
    assert len(seen["svgs"]) == 8
    assert min(seen["cards"]) > 0.85, "a plot fills its card"
    assert seen["holes"] == 0
    for left, _, height in seen["svgs"]:
        assert left >= 0
        assert height > 60
    if width >= 390:  # below it figures scroll, so that their text can be read
        assert all(right <= width for _, right, _ in seen["svgs"])


def test_bars_are_lighter_on_black(page: str) -> None:
    from bench.page.drawing import PALETTE
    from bench.page.style import STYLE

    assert all(f"--c{place}: #" in STYLE for place in range(len(PALETTE)))
    assert not any(f": {colour}" in page for colour in PALETTE)


def test_text_of_plots_follows_the_scheme(page: str, tmp_path: Path) -> None:
    light = measured(page, tmp_path, 800)
    dark = measured(page, tmp_path, 800, "--blink-settings=preferredColorScheme=0")
    assert (light["ink"], light["back"]) == ("rgb(0, 0, 0)", "rgb(255, 255, 255)")
    assert (dark["ink"], dark["back"]) == ("rgb(255, 255, 255)", "rgb(18, 18, 18)")


def test_it_prints(page: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page)
    browser.chromium(tmp_path, "--no-pdf-header-footer", "--print-to-pdf=page.pdf", "page.html")
    pdf = (tmp_path / "page.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 8
