"""Reports take nobody's words for markup, links, formulas or files, and stay small whatever went wrong."""

import io
import math
import os
import warnings
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urljoin, urlsplit

import pytest
import torch
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as draw
from made_move import a_move, some_batches
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedsim.core.errors import FedsimError, printable
from fedsim.core.types import Fault, Reconstruction, Truth, Verdict
from fedsim.lab.record import recorded
from fedsim.metrics.facts import facts
from fedsim.report import audit, figures, forging_figures
from fedsim.report.answers import Answer
from fedsim.report.figures import confusion_figure, count_table
from fedsim.report.origin import Origin
from fedsim.report.page import write_page
from fedsim.report.sweep import run_folders
from fedsim.report.write import write_report
from fedsim.storage.comparison import Cell, write_cells
from fedsim.storage.files import as_file_name
from fedsim.storage.folder import Storage
from fedsim.storage.games import keep_move
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.scores import ScoreRow

pytestmark = pytest.mark.drawn
MARKUP = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}&lt;"
WORDS = {
    "markup": MARKUP,
    "formula": "$\\frac$",
    "backslashes": "\\$x$ \\ _ ^ { $",
    "underscore": "_hidden",
    "commands": "\x1b[31m\x1b]0;title\x07\x00\r\n\x9b2J\u202eright to left",
    "surrogate": "\ud800",
    "unusual": "中文 👨‍👩‍👧 é",
    "long": "W" * 5000,
}
FIRST = ("markup", "formula", "surrogate")  # drawn whenever tests run; the rest is slow
NAMES = (  # of folders
    "javascript:alert(1)",
    "data:text,hello",
    "a#b?c%41&d;e",
    "<img src=x onerror=alert(1)>",
    "\"' onclick=alert(1) x",
    "\x1b[31mred\n",
    "\u202egnp.exe",
    os.fsdecode(b"\xff\xfe"),
    " ",
    "²_runs",
    "[bold] $\\frac$",
)


class Skeleton(HTMLParser):
    """The elements of a page with the names of their attributes, and its links."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.elements, self.links = list[tuple[str, tuple[str, ...]]](), list[str]()
        self.text = page.read_text(encoding="utf-8")
        self.feed(self.text)
        assert printable(self.text) == self.text

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attributes)))
        self.links += [value or "" for name, value in attributes if name == "href"]


def made_run(
    path: Path, *, name: str = "run", metric: str = "lnacc", reason: str = "", **more: object
) -> RunFolder:
    """A run folder as a run would leave it, with words of our choice."""
    folder = RunFolder(path)
    path.mkdir(parents=True)
    folder.storage.write_text("config.yaml", TAPPED)
    folder.write_summary(
        {"name": name, "status": "complete", "metrics": {metric: 0.5}, "baseline": {}, "seconds": 1.0}
    )
    rows = [
        ScoreRow(round=round, client=0, attack="ilrg", metric=metric, value=0.5, baseline=0.1)
        for round in (1, 2)
    ]
    rows.append(ScoreRow(round=1, client=1, attack="ilrg", metric="fault", value=None, error=reason))
    folder.write_scores(rows)
    return folder


HEADING = "format: 2\nkind: run\n"
TAPPED = """format: 2
kind: wiretap
name: test
choices: {attack: ilrg, model: net, data: tapped}
wiretap: {strategy: FedAvg, every: 1, replies: weights, model: null, task: null}
"""


def test_links_lead_to_the_runs_whatever_their_folders_are_called(tmp_path: Path) -> None:
    for name in NAMES:
        made_run(tmp_path / name)
        (tmp_path / name / "report.html").write_text("here")
    page = Skeleton(write_report(made_sweep(tmp_path)))
    reached = set()
    files = {link for link in page.links if not link.endswith("/report.html")}
    assert files == {"./sweep.csv", "./config.yaml"}  # beside the page
    for link in set(page.links) - files:
        target = urlsplit(urljoin("http://here/sweep/report.html", link))
        assert (target.scheme, target.netloc, target.query, target.fragment) == ("http", "here", "", "")
        folder = unquote_to_bytes(target.path).removeprefix(b"/sweep/").removesuffix(b"/report.html")
        assert (tmp_path / os.fsdecode(folder) / "report.html").is_file()
        reached.add(os.fsdecode(folder))
    assert reached == set(NAMES)
    assert len(run_folders(tmp_path)) == len(NAMES)
    assert ("script", ()) not in page.elements


def pages_of(folder: Path, words: str) -> list[Path]:
    """A page of each kind, with somebody's words in all places that take some."""
    stored = as_stored(words)
    return [
        write_report(made_run(folder / "run", name=words, metric=stored, reason=stored)),
        sweep_of(folder / "sweep", stored),
        comparison_of(folder / "comparison", words[:60]),
        game_of(folder / "game", words),
    ]


@pytest.fixture(scope="module")
def harmless(tmp_path_factory) -> list[Path]:
    return pages_of(tmp_path_factory.mktemp("harmless"), "harmless")


@pytest.mark.parametrize(
    "name",
    ["markup", *(pytest.param(more, marks=pytest.mark.slow) for more in ("commands", "surrogate", "long"))],
)
def test_words_of_others_change_no_page(tmp_path: Path, harmless: list[Path], name: str) -> None:
    for page, other in zip(pages_of(tmp_path, WORDS[name] + WORDS["formula"]), harmless, strict=True):
        assert Skeleton(page).elements == Skeleton(other).elements
        numbers = [len(list((of.parent / "figures").iterdir())) for of in (page, other)]
        assert numbers[0] == numbers[1]
    outside = [path for path in tmp_path.rglob("*.svg") if path.parent.name != "figures"]
    assert not outside


def as_stored(words: str) -> str:
    """What a table or summary.json of a run folder can hold: no lone surrogates."""
    return words.encode(errors="backslashreplace").decode()


def made_sweep(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.begin("sweep", "name: sweep\n")
    return folder


def sweep_of(folder: Path, words: str) -> Path:
    """A sweep in which a setting, its value and a metric are somebody's words."""
    for number in range(4):
        run = made_run(folder / str(number), metric=words)
        config = {"choices": {}, "note": f"{words}{number % 2}", words + "key": float(number)}
        run.storage.write_text("config.yaml", HEADING + yaml.safe_dump(config))
    write_report(made_sweep(folder))  # as curves
    for number in range(4):
        config = {"choices": {}, "note": f"{words}{number % 2}"}
        RunFolder(folder / str(number)).storage.write_text("config.yaml", HEADING + yaml.safe_dump(config))
    return write_report(RunFolder(folder))  # as bars


def comparison_of(folder: Path, words: str) -> Path:
    """A comparison of attacks and defenses that are called by somebody's words; some cells failed."""
    made = RunFolder(folder)
    made.begin("comparison", yaml.safe_dump({"name": "comparison", "common": [as_stored(words)]}))
    defenses = [f"{words} secure_aggregation {number}" for number in range(3)]
    cells = [Cell.of(f"{words} {n}", defense, 0, knows=True) for n in range(2) for defense in defenses]
    write_cells(made.storage, cells)
    for place, defense in enumerate(defenses):
        training = {"status": "complete", "metrics": {"accuracy": 0.1 * place}, "seconds": 1.0}
        RunFolder(folder / Cell.of("", defense, 0).training).write_summary(training)
        for own in (cell for cell in cells if cell.defense == defense):
            status = ("complete", "gave up", "failed")[place]
            cell = {
                "status": status,
                "reason": as_stored(words) if place else "",
                "metrics": {as_stored(f"../{words}"): 0.5, "lnacc": 0.2},
                "seconds": 1.0,
            }
            RunFolder(folder / own.folder).write_summary(cell)
    return write_report(made)


def test_the_table_in_a_comparisons_link_is_the_table(tmp_path: Path) -> None:
    page = Skeleton(comparison_of(tmp_path, MARKUP + "\n,;#%"))
    (link,) = [link for link in page.links if link.startswith("data:")]
    start = "data:text/csv;charset=utf-8,"
    assert unquote(link.removeprefix(start)) == (tmp_path / "comparison.csv").read_text()


def game_of(folder: Path, words: str) -> Path:
    played = RunFolder(folder)
    played.begin("game", "")
    for number in range(9):
        keep_move(played.storage, a_move(words, number), some_batches())
    return write_report(played)


def drawn(figure: Figure) -> list[str]:
    """Draw a figure; return its texts as matplotlib shows them, and fail if any is a formula."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Glyph .* missing")
        warnings.filterwarnings(
            "ignore", "constrained_layout not applied"
        )  # 40 wide letters: drawn, not pretty
        figure.savefig(io.BytesIO(), format="png", dpi=20)
    shown = [text._preprocess_math(text.get_text()) for text in figure.findobj(Text) if text.get_visible()]
    assert not any(
        formula for words, formula in shown if "mathdefault" not in words
    )  # a log axis has such ticks
    return [words for words, _ in shown]


def all_figures(words: str) -> dict[str, Figure]:
    """Every figure that shows words of others, with these in all of their places."""
    metric = facts(words)
    counts, picture, other = torch.tensor([1, 2]), torch.rand(2, 1, 3, 3), words + "2"
    verdicts = [Verdict(round=1, client=0, accepted=False, distance=0.1, limit=0.2)]
    return {
        "labels": figures.label_figure(counts, counts, words, False),
        "traces": figures.trace_figure({words: [2.0, 1.0]}),
        "scores": figures.rounds_figure(words, {1: 0.5, 2: 0.6}),
        "curves": figures.curve_figure(words, metric, {words: [(1.0, 0.1), (2.0, 0.2)], other: [(1.0, 0.3)]}),
        "sweep": figures.bars_figure(metric, [words, other], [0.5, None], [True, False]),
        "heat": figures.heat_figure(metric, [words], [words, other], [[0.5, None]], [["", "–"]]),
        "scatter": figures.scatter_figure(metric, {words: (0.5, 0.5), other: (0.6, 0.7)}, {words}),
        "rounds": figures.curves_figure(words, {words: [(1.0, 0.5), (2.0, 0.6)]}),
        "rows": figures.rows_figure(words, list(picture), {words: list(picture)}, {words: ["a", "b"]}),
        "verdicts": audit.verdicts_figure(verdicts, {0: words}),
        "errors": forging_figures.errors_figure([a_move(words, number) for number in range(3)]),
        **forging_figures.causes_figures([a_move(words, number) for number in range(3)]),
        **forging_figures.roc_figures([a_move(words, number) for number in range(3)]),
    }


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=name, marks=() if name in FIRST else pytest.mark.slow)
        for name, words in WORDS.items()
    ],
)
def test_figures_draw_words_as_they_are(words: str) -> None:
    for name, figure in all_figures(words).items():
        texts = drawn(figure)
        begin = printable(words, keep="")[:18].rstrip()
        assert any(begin in text for text in texts), name
        assert all(text.replace("\n", "").isprintable() for text in texts), name


@given(words=draw.text(draw.characters(codec=None), min_size=1, max_size=60))
@example("$\\frac$")
@example("\udcff")
@example("0000⨝\x1f⨝⨝⨰⨰咆𝒇풉풉𝒊𝒋𝒌𝒍𝒎𝒏풐풐풐𝒑𝒒풓풓𝒔𝒕풖풖𝒗𝒘𝒙𝒚𝒛")
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_words_can_be_drawn(words: str) -> None:
    groups = {words: [(1.0, 0.1), (2.0, 0.2)], "other": [(1.0, 0.3)]}
    drawn(figures.curve_figure(words, facts(words), groups))
    drawn(figures.bars_figure(facts(words), [words], [0.5], [True]))


def test_a_figure_is_saved_in_its_folder_whatever_it_is_called(tmp_path: Path) -> None:
    names = [
        "plain",
        "../../outside",
        "/etc/x",
        "..",
        ".hidden",
        "a/b",
        "a_b",
        "x" * 300,
        "\x00",
        "\ud800",
        "中",
    ]
    write_page(
        tmp_path / "page" / "report.html",
        "sweep.html",
        {name: Figure(figsize=(1, 1)) for name in names},
        **{"title": "t", "rows": [], "keys": [], "metrics": [], "failed": 0},
        answer=Answer(sentences=()),
        origin=Origin(command="", facts=[], files=[]),
    )
    saved = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.parent for path in saved} == {tmp_path / "page", tmp_path / "page" / "figures"}
    assert len(saved) == len(names) + 2  # the page and the manifest
    assert as_file_name("heat_lnacc") == "heat_lnacc"


def test_a_sweeps_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    made_run(tmp_path / "0_a")
    RunFolder(tmp_path / "0_a").storage.write_text("summary.json", "{")
    folder = made_sweep(tmp_path)
    words = r"summary\.json: not readable"
    with pytest.raises(FedsimError, match=words), recorded(folder, "sweep", dict):
        pass
    assert folder.status == "failed"  # and so the command's status is 1


CLASSES = 4


def a_batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    labels = torch.randint(CLASSES, (2 + number % 30,), generator=generator)
    return labels, torch.randint(0, 20, (CLASSES,), generator=generator)


@pytest.mark.slow
def test_a_report_reads_every_guess_once_and_stays_small(tmp_path: Path, monkeypatch) -> None:
    folder, number = made_run(tmp_path / "run"), 1500
    for client in range(number):
        labels, counts = a_batch(client)
        folder.keep_guess(1, client, Reconstruction(class_counts=counts, images=torch.rand(1, 2, 2, 2)))
        truth = Truth(round=1, client=client, images=torch.rand(len(labels), 2, 2, 2), labels=labels)
        folder.keep_truth(truth)
    words = ["x" * 600] * 400 + ["x"] * 99_600
    rows = [
        ScoreRow(round=1, client=client, attack="a", metric="fault", value=None, error=error)
        for client, error in enumerate(words)
    ]
    folder.write_scores(rows)
    reads, read, tables = Counter[str](), Storage.read_tensors, list[torch.Tensor]()

    def counted(storage: Storage, name: str):
        reads[name] += 1
        return read(storage, name)

    def kept(table: torch.Tensor) -> Figure:
        tables.append(table)
        return confusion_figure(table)

    monkeypatch.setattr(Storage, "read_tensors", counted)
    monkeypatch.setattr("fedsim.report.guesses.confusion_figure", kept)
    page = write_report(folder).read_text()
    assert set(reads.values()) == {1}
    assert len(reads) == 2 * number
    assert len(page) < 3_000_000
    assert f"{100_000 - 400:,} more in scores.csv" in page
    assert page.count("x" * 500 + " ...") == 400
    expected = torch.zeros(13, 13, dtype=torch.int64)
    for client in range(number):
        labels, counts = a_batch(client)
        for true, guessed in zip(labels.bincount(minlength=CLASSES).tolist(), counts.tolist(), strict=True):
            expected[min(guessed, 12), min(true, 12)] += 1
    assert torch.equal(tables[0], expected)


@given(pairs=draw.lists(draw.tuples(draw.integers(0, 15), draw.integers(0, 15)), min_size=1, max_size=20))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_table_of_counts_shows_what_there_is(pairs: list[tuple[int, int]]) -> None:
    true, guessed = (torch.tensor(numbers) for numbers in zip(*pairs, strict=True))
    figure = confusion_figure(
        sum(count_table(true[i : i + 3], guessed[i : i + 3]) for i in range(0, len(pairs), 3))
    )
    (axes,) = figure.axes
    size = min(13, max(map(max, pairs)) + 1)
    assert len(axes.get_xticks()) == len(axes.get_yticks()) == size
    written = {(round(x), round(y)): int(t.get_text()) for t in axes.texts for x, y in [t.get_position()]}
    assert written == Counter((min(t, 12), min(g, 12)) for t, g in pairs)


def test_an_audit_of_many_clients_is_drawn_with_some_of_their_names() -> None:
    verdicts = [Verdict(round=1, client=client, accepted=client % 3 > 0) for client in range(20_000)]
    (axes,) = audit.verdicts_figure(verdicts, {7: "free_rider"}).axes
    assert len(axes.get_yticks()) == 100
    assert not math.isnan(float(axes.images[0].get_array()[7, 0]))
    few = [Verdict(round=1, client=client, accepted=True) for client in range(3)]
    (axes,) = audit.verdicts_figure(few, {1: "free_rider"}).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1 free_rider", "2"]


def test_a_fault_of_a_client_is_said_in_the_page(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", reason="disk <b>on</b> fire\x1b[2J")
    folder.keep_fault(Fault(round=1, client=1, reason="unused"))
    assert "disk &lt;b&gt;on&lt;/b&gt; fire\\x1b[2J" in write_report(folder).read_text()
