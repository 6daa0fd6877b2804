"""The report in headless Chromium: no error, no request, everything to be seen at 360 to 1400 pixels, by keyboard too.

Skipped where there is no Chromium with its driver (Debian: ``apt-get install chromium chromium-driver``).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.records.comparison_files import write
from rayfed_ssl.records.comparison_rows import of_variants
from rayfed_ssl.report.dispatch import report_of
from rayfed_ssl.testing.tiny import run_locally, tiny_run
from tests.report.conftest import told

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage")
SHOWN = """
return [...document.querySelectorAll('figure svg, img, table, .verdict, .tiles')].map(e => {
  const box = e.getBoundingClientRect(), scroll = e.closest('.scroll');
  return {what: e.closest('[id]')?.id + ' ' + e.tagName, width: box.width, height: box.height, left: box.left,
          right: scroll ? scroll.getBoundingClientRect().right : box.right, hidden: !!e.closest('details:not([open])'),
          loaded: e.tagName != 'IMG' || (e.complete && e.naturalWidth > 0),
          drawn: e.tagName != 'svg' || e.querySelectorAll('path, use, image').length > 3};
});
"""
CAPTIONS = """
return [...document.querySelectorAll('.scroll caption span')].filter(e => !e.closest('details:not([open])')).map(e => {
  const scroll = e.closest('.scroll'), box = e.getBoundingClientRect(), at = scroll.getBoundingClientRect();
  scroll.scrollLeft = 10000;
  const later = e.getBoundingClientRect();
  const wide = scroll.scrollWidth > scroll.clientWidth;
  scroll.scrollLeft = 0;
  return {inside: [box, later].every(b => b.left >= at.left && b.right <= at.right), wide, text: e.textContent};
});
"""
TEXTS = """
return [...document.querySelectorAll('figure.card svg text')].map(e => parseFloat(getComputedStyle(e).fontSize)
  * e.ownerSVGElement.getBoundingClientRect().width / e.ownerSVGElement.viewBox.baseVal.width);
"""
SCROLLED = """
return [...document.querySelectorAll('main .scroll')].map(e => {
  const box = e.getBoundingClientRect(), first = e.querySelector('tbody td').getBoundingClientRect().right;
  const wide = e.scrollWidth > e.clientWidth;
  e.scrollLeft = 10000;
  const names = Math.min(...[...e.querySelectorAll('tbody th')].map(name => name.getBoundingClientRect().left));
  e.scrollLeft = 0;
  const texts = [...e.querySelectorAll('td, th, small')];
  const letters = Math.min(...texts.map(text => parseFloat(getComputedStyle(text).fontSize)));
  return {left: box.left, right: box.right, wide, names, letters, first, what: e.getAttribute('aria-label')};
});
"""
REACHABLE = """
return [...document.querySelectorAll('a[href], summary, [tabindex="0"]')]
  .filter(e => e.tagName === 'SUMMARY' || !e.closest('details:not([open])')).length;
"""
FOCUS = """
const e = document.activeElement;
if (e === document.body) return null;
e.dataset.seen ??= String(document.querySelectorAll('[data-seen]').length);
return {seen: e.dataset.seen, text: e.textContent.trim().slice(0, 40), outline: getComputedStyle(e).outlineStyle};
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no chromium and chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def opened(browser: Any, page: Path, width: int, scheme: str) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page.as_uri())


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two rows with six accuracies, and its report."""
    root = tmp_path_factory.mktemp("many")
    given = {"train.rounds": 1, "clients.count": 3, "evaluation.select": {"share": 0.1}}
    given |= {"evaluation.protocols": ["knn", "linear", "fewshot", "rank"]}
    rows = {
        method: [run_locally_in(root / f"{method}-{seed}", method, {**given, "seed": seed}) for seed in (0, 1)]
        for method in ("fedsimclr", "local")
    }
    write(of_variants(rows), root)
    report_of(root)
    return root


def run_locally_in(folder: Path, method: str, changes: dict[str, Any]) -> Path:
    run_locally(tiny_run(method, changes), folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (390, "light"), (1100, "light"), (1400, "light")])
def test_everything_is_there_and_nothing_else(browser: Any, fedfoa: Path, width: int, scheme: str) -> None:
    page = fedfoa / "report.html"
    browser.get_log("performance")
    opened(browser, page, width, scheme)
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in asked
    assert [url for url in asked if url != page.as_uri() and not url.startswith("data:")] == []

    assert browser.execute_script("return document.documentElement.scrollWidth") == width
    parts = [part for part in browser.execute_script(SHOWN) if not part["hidden"]]
    assert len(parts) > 30
    for part in parts:
        assert part["loaded"], part
        assert part["drawn"], part
        assert part["width"] > 20, part
        assert part["height"] > 20, part
        assert part["left"] >= 0, part
        assert part["right"] <= width + 0.5, part
    assert min(browser.execute_script(TEXTS)) > 7  # pixels
    captions = browser.execute_script(CAPTIONS)
    assert any(caption["wide"] for caption in captions) == (width < 400)
    assert [caption["text"] for caption in captions if not caption["inside"]] == []

    shown = browser.execute_script(
        "return [...document.querySelectorAll('data[data-key]')].map(e => [e.dataset.key, e.value, e.textContent])"
    )
    assert len(shown) > 10
    for key, value, _ in shown:
        assert float(value) == pytest.approx(told(fedfoa / "summary.json", key), rel=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 1100])
def test_a_comparisons_tables_scroll_in_their_boxes_with_the_rows_names_in_sight(
    browser: Any, many: Path, width: int
) -> None:
    opened(browser, many / "report.html", width, "light")
    assert browser.execute_script("return document.documentElement.scrollWidth") == width
    found = browser.execute_script(SCROLLED)
    assert len(found) >= 3
    assert any(box["wide"] for box in found) or width > 400
    for box in found:
        assert box["right"] <= width + 0.5, box
        assert box["names"] >= box["left"] - 0.5, box
        assert box["letters"] >= 12, box
        assert box["first"] <= width, box  # the first column of numbers is seen without scrolling


@pytest.mark.long
def test_dark_and_light_differ_in_the_figures_too(browser: Any, fedfoa: Path) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        opened(browser, fedfoa / "report.html", 1400, scheme)
        seen[scheme] = browser.execute_script(
            "return [getComputedStyle(document.body).backgroundColor,"
            "getComputedStyle(document.querySelector('#figure-accuracy_rounds svg text')).fill]"
        )
    for light, dark in zip(seen["light"], seen["dark"], strict=True):
        assert light != dark
    paper, ink = (sum(int(part) for part in colour[4:-1].split(",")) for colour in seen["dark"])
    assert ink - paper > 450  # light on dark


@pytest.mark.long
def test_the_keyboard_reaches_everything(browser: Any, fedfoa: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, fedfoa / "report.html", 1400, "light")
    count = browser.execute_script(REACHABLE)
    seen: list[dict[str, str]] = []
    for _ in range(count + 5):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        focus = browser.execute_script(FOCUS)
        if focus is None or any(focus["seen"] == other["seen"] for other in seen):
            break
        seen.append(focus)
    assert seen[0]["text"] == "Skip to the results"
    assert len(seen) == count
    assert all(focus["outline"] != "none" for focus in seen)
