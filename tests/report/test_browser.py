"""The report in headless Chromium: no error, no request, everything to be seen at 360 and 1400 pixels, by keyboard too.

Skipped where there is no Chromium with its driver (Debian: ``apt-get install chromium chromium-driver``).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1400, "light")])
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
    assert any(caption["wide"] for caption in captions) == (width == 360)
    assert [caption["text"] for caption in captions if not caption["inside"]] == []

    shown = browser.execute_script(
        "return [...document.querySelectorAll('data[data-key]')].map(e => [e.dataset.key, e.value, e.textContent])"
    )
    assert len(shown) > 10
    for key, value, _ in shown:
        assert float(value) == pytest.approx(told(fedfoa / "summary.json", key), rel=1e-12)


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
