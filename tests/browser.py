"""A page in Chromium: how it looks at a width, light or dark, and what it complains of."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pytest

needs_browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium to open pages with")
PHONE, DESK = 390, 1400
CHROMIUM = (
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=5000",
)
LISTEN = """<script>
window.problems = [];
const note = words => problems.push(String(words));
window.addEventListener("error", e => note(e.message || "not loaded: " + e.target.tagName), true);
console.error = (...words) => note(words.join(" "));
</script>"""
LOOK = """<script>
const channels = text => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
  .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
  .reduce((sum, c, place) => sum + c * [.2126, .7152, .0722][place], 0);
const ground = node => {
  for (; node; node = node.parentElement) {
    const found = channels(getComputedStyle(node).backgroundColor);
    if (found.length < 4 || found[3] > 0) return found;
  }
  return [255, 255, 255];
};
const contrast = node => {
  const own = [light(channels(getComputedStyle(node).color)), light(ground(node))];
  return (Math.max(...own) + .05) / (Math.min(...own) + .05);
};
window.addEventListener("load", () => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), faint = [];
  let texts = 0;
  while (walker.nextNode()) {
    const words = walker.currentNode.textContent.trim(), node = walker.currentNode.parentElement;
    if (!words || ["SCRIPT", "STYLE"].includes(node.tagName) || !node.getClientRects().length) continue;
    texts += 1;
    if (contrast(node) < 4.5) faint.push([words.slice(0, 40), contrast(node).toFixed(2)]);
  }
  const boxes = [...document.querySelectorAll("*")].filter(e => e.scrollWidth > e.clientWidth + 1
    && ["auto", "scroll"].includes(getComputedStyle(e).overflowX) && e !== document.documentElement);
  const images = [...document.images];
  const shown = i => i.getBoundingClientRect().width;
  const asked = window.asked ? window.asked() : null;
  parent.postMessage(JSON.stringify({
    seen: innerWidth, wide: document.documentElement.scrollWidth, problems, faint, texts, asked,
    pictures: images.map(i => i.complete ? i.naturalWidth : 0),
    shrunk: images.filter(i => shown(i) < i.getAttribute("width") - 8).map(i => i.alt),
    unnamed: [...images.filter(i => !i.alt), ...boxes.filter(b => !b.ariaLabel)].length,
    unreachable: boxes.filter(b => b.tabIndex < 0).length,
    boxes: boxes.length,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
  }), "*");
});
</script>"""
# Words of figures: whole within the figure, none upon another; turned ones need less than their boxes.
WORDS = """[...document.querySelectorAll("svg")].flatMap(figure => {
  const edge = figure.getBoundingClientRect(), name = figure.parentElement.id, found = [];
  const words = [...figure.querySelectorAll("text")].filter(t => t.textContent.trim()).map(t => {
    const turned = /rotate\\((-?[\\d.]+)/.exec(t.getAttribute("transform") ?? "");
    const level = turned === null || Number(turned[1]) === 0;
    return {said: t.textContent, box: t.getBoundingClientRect(), level};
  });
  for (const {said, box} of words) {
    const sideways = Math.max(edge.left - box.left, box.right - edge.right);
    if (Math.max(sideways, edge.top - box.top, box.bottom - edge.bottom) > 1) found.push([name, "cut", said]);
  }
  const level = words.filter(word => word.level);
  level.forEach((one, place) => level.slice(place + 1).forEach(other => {
    const wide = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
    const high = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
    if (wide > 1 && high > 4) found.push([name, "covered", `${one.said} | ${other.said}`]);
  }));
  return found;
})"""
# A window is never narrower than 500 pixels; a frame in it may be.
FRAME = """<!doctype html><body style="margin: 0">
<script>addEventListener("message", said => document.title = said.data);</script>
<iframe src="probed.html" width="{width}" height="900" style="border: 0"></iframe>"""


def looked_at(page: Path, *, width: int = DESK, dark: bool = False, asks: str = "null") -> dict[str, Any]:
    """Open a copy of a page; asks: a JavaScript expression whose value comes back as `asked`."""
    text = page.read_text(encoding="utf-8").replace("<head>", f"<head>{LISTEN}", 1)
    asking = f"<script>window.asked = () => {asks};</script>"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        probed = text.replace("</body>", f"{asking}{LOOK}</body>", 1)
        Path(folder, "probed.html").write_text(probed, encoding="utf-8")
        Path(folder, "frame.html").write_text(FRAME.format(width=width))
        program = [*CHROMIUM, f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        program += [f"--user-data-dir={folder}/profile", f"--window-size={max(width, 500)},900"]
        program += ["--dump-dom", f"file://{folder}/frame.html"]
        printed = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True).stdout
    found: dict[str, Any] = json.loads(unescape(printed.split("<title>", 1)[1].split("</title>", 1)[0]))
    return found


def words_out_of_place(figures: Sequence[Path]) -> list[list[str]]:
    """Return of SVG files the words that are cut at the edge, or that cover others: file, how, words."""
    drawn = "".join(
        f'<div id="{figure.stem}"><svg{figure.read_text(encoding="utf-8").partition("<svg")[2]}</div>'
        for figure in figures
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = Path(folder, "figures.html")
        page.write_text(f"<!doctype html><html><head></head><body>{drawn}</body></html>", encoding="utf-8")
        found: list[list[str]] = looked_at(page, asks=WORDS)["asked"]
    return found


def assert_looks_well(found: dict[str, Any], *, width: int, dark: bool = False) -> None:
    """Hold a page to what every one of ours keeps: it fits, it can be read, seen, and reached."""
    assert (found["seen"], found["dark"]) == (width, dark)
    assert found["wide"] <= width  # what is wider scrolls in a box of its own
    assert found["problems"] == []
    assert found["texts"] > 20
    assert found["faint"] == []  # contrast of at least 4.5
    assert all(found["pictures"])
    assert found["shrunk"] == []  # words in figures are as large as they were drawn
    assert (found["unnamed"], found["unreachable"]) == (0, 0)
