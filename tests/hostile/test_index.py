"""The index of runs takes folders as they are: hostile names, damage, strangers, and thousands of them."""

import json
import os
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote_to_bytes, urljoin, urlsplit

import pytest
from browser import DESK, PHONE, looked_at, needs_browser
from made_runs import made_comparison, made_run, made_sweep

from fedsim.core.errors import FedsimError, printable
from fedsim.report.index import write_index
from fedsim.report.overview import overviews

MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}\"'"
NAMES = (
    "javascript:alert(1)",
    "a#b?c%41&d;e",
    "<img src=x>",
    "\x1b[31mred\n",
    "\u202egnp",
    os.fsdecode(b"\xff"),
)


class Elements(HTMLParser):
    """The elements of a page, and its links."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags, self.links = list[str](), list[str]()
        self.text = page.read_text(encoding="utf-8")
        self.feed(self.text)
        assert printable(self.text) == self.text

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attributes if name == "href"]

    def compared(self) -> dict[str, list]:
        """What the page compares runs by."""
        return json.loads(re.search(r'id="compared">(.*?)</script>', self.text, re.DOTALL)[1])


def test_an_index_lists_runs_and_their_parts_with_what_they_chose(tmp_path: Path) -> None:
    made_run(tmp_path / "2026-01-02" / "03-04-05-678_made", federation={"batch_size": 8})
    made_sweep(tmp_path / "sweep")
    made_comparison(tmp_path / "comparison")
    found = {str(one.path.relative_to(tmp_path)): one for one in overviews(tmp_path)}
    assert len(found) == 1 + 4 + 9
    single = found["2026-01-02/03-04-05-678_made"]
    assert (single.kind, single.date, single.status) == ("run", "2026-01-02 03:04:05", "complete")
    assert (single.metrics["lnacc"], single.baselines["lnacc"]) == (0.75, 0.25)
    assert found["sweep"].chosen == {
        "model": "fcn3",
        "data": "mnist_small",
        "attack": "ilrg",
        "defense": "none",
        "seed": "0, 1, 2",
    }
    assert found["comparison"].chosen["attack"] == "ilrg"  # and not the trainings' none
    assert found["sweep/2_made"].parent == tmp_path / "sweep"
    page = Elements(write_index(tmp_path))
    assert page.tags.count("tr") == 1 + len(found)
    compared = page.compared()
    settings = [dict(compared["pairs"][place] for place in run["settings"]) for run in compared["runs"]]
    assert {own.get("federation.batch_size") for own in settings} == {None, "8", "400"}
    assert not page.links  # none has a report yet
    assert (tmp_path / "index.html").stat().st_mode & 0o777 == 0o600
    assert write_index(tmp_path).read_text() == page.text  # an index may be written again
    (tmp_path / "index.html").write_text("somebody's own")
    with pytest.raises(FedsimError, match=r"is not fedsim's\. Remedy"):
        write_index(tmp_path)


def test_names_and_words_of_others_are_neither_markup_nor_addresses(tmp_path: Path) -> None:
    for name in NAMES:
        made_run(tmp_path / "runs" / name, name=MARKUP, metric=MARKUP, attack=MARKUP, note={MARKUP: MARKUP})
        (tmp_path / "runs" / name / "report.html").write_text("here")
        made_run(tmp_path / "plain" / str(len(list((tmp_path / "runs").iterdir()))))
    page, plain = Elements(write_index(tmp_path / "runs")), Elements(write_index(tmp_path / "plain"))
    assert [tag for tag in page.tags if tag != "a"] == plain.tags
    assert (MARKUP, MARKUP) in map(tuple, page.compared()["titles"])
    reached = set()
    for link in page.links:
        target = urlsplit(urljoin("http://here/runs/index.html", link))
        assert (target.scheme, target.netloc, target.query, target.fragment) == ("http", "here", "", "")
        reached.add(os.fsdecode(unquote_to_bytes(target.path).split(b"/")[2]))
    assert reached == set(NAMES)


def test_damaged_and_foreign_folders_are_listed_and_stop_nothing(tmp_path: Path) -> None:
    made_run(tmp_path / "good")
    (made_run(tmp_path / "torn").path / "summary.json").write_text("{")
    for number, text in enumerate(["a: *b", "- list", "format: 99\nkind: run\n", "&a [*a, *a]"]):
        (tmp_path / f"strange_{number}").mkdir()
        (tmp_path / f"strange_{number}" / "config.yaml").write_text(text)
    aliased = made_run(tmp_path / "aliased")
    aliased.storage.write_text("config.yaml", "format: 2\nkind: run\nx: &a [1]\ny: [*a, *a]\n")
    unreal = made_run(tmp_path / "unreal")
    unreal.storage.write_text(
        "summary.json", '{"metrics": {"lnacc": NaN, "huge": 1' + "0" * 400 + '}, "date": []}'
    )
    (tmp_path / "holiday" / "pictures").mkdir(parents=True)
    (tmp_path / "holiday" / "pictures" / "beach.png").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path)
    found = {one.path.name: one for one in overviews(tmp_path)}
    assert {name for name, one in found.items() if one.status == "damaged"} == {
        "torn",
        "aliased",
        *(f"strange_{number}" for number in range(4)),
    }
    assert "changed or damaged" in found["torn"].problem
    assert "got an alias" in found["aliased"].problem
    assert found["holiday"].status == "not a run"
    assert not {"empty", "loop", "pictures"} & found.keys()
    assert found["unreal"].metrics == {"lnacc": None, "huge": None}
    text = unescape(write_index(tmp_path).read_text())
    assert "7 of them no run, or damaged" in text
    with pytest.raises(FedsimError, match="holds no run"):
        write_index(tmp_path / "holiday")


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(PHONE, False), (DESK, True)])
def test_two_thousand_runs_are_filtered_sorted_and_compared_in_a_browser(
    tmp_path: Path, width: int, dark: bool
) -> None:
    for seed in range(50):
        made_run(tmp_path / f"{seed}_made", seed=seed, lnacc=seed / 50, attack="idlg" if seed % 2 else "ilrg")
    made_sweep(tmp_path / "sweep", note=MARKUP)
    made_run(tmp_path / "hostile", name=MARKUP, metric=MARKUP, attack=MARKUP)
    copies = [*(tmp_path / "0_made").iterdir()]
    for number in range(1950):  # the same run over and over: making 1,950 takes half a minute
        (tmp_path / "more" / str(number)).mkdir(parents=True)
        for path in copies:
            if path.is_file():
                os.link(path, tmp_path / "more" / str(number) / path.name)
    page = write_index(tmp_path)
    assert page.stat().st_size < 5_000_000
    asks = """(() => {
      const rows = () => [...document.querySelectorAll("#runs tbody tr")].filter(row => !row.hidden);
      const filter = document.getElementById("filter"), all = rows().length;
      const type = words => {
        filter.value = words; filter.dispatchEvent(new Event("input")); return rows().length; };
      const few = type("IDLG complete"), none = type("nothing of that kind"); type("");
      document.getElementById("parts").click(); const parts = rows().length;
      const headings = [...document.querySelectorAll("#runs th")];
      const heading = headings.find(th => th.textContent.includes("number accuracy"));
      const cells = () => rows().map(row => row.cells[heading.cellIndex].dataset.value);
      const column = () => cells().filter(value => value).map(Number);
      heading.firstChild.click(); const down = column(), said = heading.getAttribute("aria-sort");
      heading.firstChild.click(); const up = column();
      type("_made"); const boxes = rows().slice(0, 3).map(row => row.querySelector("input"));
      boxes.forEach(box => box.click()); const ticked = boxes.map(box => box.checked);
      const sides = document.getElementById("sides");
      const table = [...sides.rows].map(row => [...row.cells].map(cell => cell.textContent));
      type("hostile"); rows()[0].querySelector("input").click();
      return {all, few, none, parts, down, up, said, table, ticked,
              strange: sides.querySelectorAll("img, script").length,
              told: document.getElementById("shown").textContent};
    })()"""
    seen = looked_at(page, width=width, dark=dark, asks=asks)
    asked = seen["asked"]
    assert (seen["problems"], seen["faint"], seen["unnamed"], seen["unreachable"]) == ([], [], 0, 0)
    assert seen["wide"] <= seen["seen"]
    assert (asked["all"], asked["few"], asked["none"], asked["parts"]) == (2002, 25, 0, 2005)
    assert asked["down"] == sorted(asked["down"], reverse=True)
    assert asked["up"] == sorted(asked["up"])
    assert asked["said"] == "descending"
    assert asked["ticked"] == [False, True, True]  # a third takes the place of the first
    words = [row[0] for row in asked["table"]]
    assert words[1] == "settings that differ"
    assert "seed" in words[2 : words.index("scores, with baselines")]
    (score,) = [row for row in asked["table"] if "number accuracy" in row[0]]
    assert all(re.fullmatch(r"\d\.\d{3} \(0\.250\)", cell) for cell in score[1:])
    assert asked["strange"] == 0
    assert asked["told"] == "1 of 2,005 shown"
