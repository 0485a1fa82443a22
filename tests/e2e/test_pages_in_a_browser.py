"""Pages of every kind in Chromium, on a phone and on a desk, by day and by night."""

from collections.abc import Callable
from pathlib import Path

import pytest
from browser import DESK, PHONE, assert_looks_well, looked_at, needs_browser, words_out_of_place
from small_settings import DATA, SMALL

from fedsim.commands.calibrate import calibrate_by
from fedsim.commands.compare import compare_by
from fedsim.commands.forge import forge_by
from fedsim.commands.prove import prove_by
from fedsim.commands.run import play
from fedsim.config.compose import quoted
from fedsim.metrics.facts import facts
from fedsim.report.figures import bars_figure, curve_figure, heat_figure, scatter_figure
from fedsim.report.figures.drawing import as_svg
from fedsim.report.index import write_index
from fedsim.report.write import write_report
from fedsim.storage.runfolder import RunFolder

pytestmark = [needs_browser, pytest.mark.drawn]
KINDS = ("run", "images", "sweep", "comparison", "game", "audit")
TABLES = ("proof", "calibration")  # pages without figures
PLAYED = tuple(text for text in SMALL if not text.startswith(("name=", "metric=")))


def make_all(folder: Path) -> None:
    """A folder of each kind, as small as it goes; images wide enough to scroll on a phone."""
    into = {kind: quoted(str(folder / kind)) for kind in (*KINDS, *TABLES)}
    play([*PLAYED, f"hydra.run.dir={into['run']}"])
    play([*PLAYED, "attack=ig", "attack.optimiser.iterations=3", f"hydra.run.dir={into['images']}"])
    swept = ("defense=[noise]", "defense.noise.sigma=0.001,0.1,10", f"hydra.sweep.dir={into['sweep']}")
    play([*PLAYED, *swept], multirun=True)
    compare_by([*PLAYED, "attack=[ilrg,idlg]", "defense=[none,noise]", f"into={into['comparison']}"])
    forging = ("proof.steps=4", "proof.batch_size=8", "forgery=[greedy,parallelogram]", "data.shape=[1,7,7]")
    forge_by([*DATA, "model=softmax", *forging, f"hydra.run.dir={into['game']}"])
    audited = ("federation=fedavg", "federation.local_steps=4", "audit=proof_of_learning", "attack=none")
    cheats = ("client=[free_rider]", "client.free_rider.share=0.34", f"hydra.run.dir={into['audit']}")
    play([*PLAYED, *audited, *cheats])
    trained = (*DATA, "model=softmax", "proof.steps=4", "proof.batch_size=8")
    prove_by([*trained, f"hydra.run.dir={into['proof']}"])
    calibrate_by([*trained, "proof.intervals=[2]", f"hydra.run.dir={into['calibration']}"])
    write_index(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(PHONE, False), (PHONE, True), (DESK, False), (DESK, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_fits_and_can_be_read(
    made_once: Callable[..., Path], kind: str, width: int, dark: bool
) -> None:
    folder = made_once("pages_of_every_kind", make_all) / kind
    found = looked_at(folder / "report.html", width=width, dark=dark)
    assert_looks_well(found, width=width, dark=dark)
    assert len(found["pictures"]) >= 2
    if kind in ("images", "comparison", "game") and width == PHONE:
        assert found["boxes"] > 0  # what is wide scrolls in its own box


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(PHONE, True), (DESK, False)])
@pytest.mark.parametrize("page", ["proof/report.html", "calibration/report.html", "index.html"])
def test_a_page_of_tables_fits_and_can_be_read(
    made_once: Callable[..., Path], page: str, width: int, dark: bool
) -> None:
    found = looked_at(made_once("pages_of_every_kind", make_all) / page, width=width, dark=dark)
    assert_looks_well(found, width=width, dark=dark)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_words_of_figures_are_whole_and_apart(made_once: Callable[..., Path], kind: str) -> None:
    drawn = sorted((made_once("pages_of_every_kind", make_all) / kind / "figures").glob("*.svg"))
    assert len(drawn) >= 2
    assert words_out_of_place(drawn) == []


def test_words_of_crowded_figures_are_whole_and_apart(tmp_path: Path) -> None:
    metric = facts("leacc")
    labels = ["mnist_small, gradinversion_matching", "cifar10_small, ilrg", "cifar10_small, idlg"]
    names = ("none", "noise (sigma 0.1)", "clip + noise", "sparsify")
    close = {name: (0.386 + 1e-4 * place, 1 - 0.004 * place) for place, name in enumerate(names)}
    table = [[1.0, 0.9, None, 0.5]] * 2
    made = {
        "bars": bars_figure(metric, labels, [1.0, None, 0.5], [True] * 3, [0.9] * 3),
        "bytes": bars_figure(facts("bytes"), labels, [1_315_240.0, 4_060_840.0, 248_024.0], [True] * 3),
        "scatter": scatter_figure(metric, close, {"none"}, blind=0.92),
        "alike": scatter_figure(metric, dict.fromkeys(names, (0.5, 1.0)), set(names), blind=0.2),
        "heat": heat_figure(metric, labels[:2], names, table, [["x"] * 4] * 2, blind=0.92),
        "curve": curve_figure("defense.noise.sigma", metric, {"": [(0.001, 1.0), (0.1, 0.9), (10, 0.5)]}),
    }
    for name, figure in made.items():
        (tmp_path / f"{name}.svg").write_bytes(as_svg(figure).content)
    assert words_out_of_place(sorted(tmp_path.glob("*.svg"))) == []
    assert ">4 MB<" in (tmp_path / "bytes.svg").read_text().replace("\N{NO-BREAK SPACE}", " ")


def test_words_that_are_cut_or_covered_are_noticed(tmp_path: Path) -> None:
    """The twin."""
    drawn = tmp_path / "drawn.svg"
    texts = '<text x="80" y="20">at the edge</text><text x="5" y="50">one</text><text x="7" y="52">two</text>'
    drawn.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="100" height="60">{texts}</svg>')
    assert words_out_of_place([drawn]) == [["drawn", "cut", "at the edge"], ["drawn", "covered", "one | two"]]


def test_a_runs_page_fits_a_phone_at_night(play_small) -> None:
    page = play_small().path / "report.html"
    assert_looks_well(looked_at(page, width=PHONE, dark=True), width=PHONE, dark=True)


def test_a_page_that_does_not_is_noticed(tmp_path: Path) -> None:
    """The twin: each of these faults is found."""
    page = tmp_path / "page.html"
    page.write_text(
        '<!doctype html><html><head></head><body><p style="color: #999; background: #fff">faint</p>'
        '<div style="width: 900px">wide</div><img src="nowhere.svg"><script>nobody();</script>'
        '<div style="overflow-x: auto; width: 99px"><div style="width: 999px">x</div></div></body></html>'
    )
    found = looked_at(page, width=PHONE)
    assert found["wide"] > PHONE
    assert found["faint"] == [["faint", "2.85"]]
    assert found["pictures"] == [0]
    assert found["unnamed"] == 2
    assert len(found["problems"]) == 2
    with pytest.raises(AssertionError):
        assert_looks_well(found, width=PHONE)


def test_words_of_a_figure_are_words(tmp_path: Path, play_small) -> None:
    folder = play_small("federation.rounds=1")
    drawn = (folder.path / "figures" / "accuracy.svg").read_text()
    assert ">test accuracy</text>" in drawn
    assert "prefers-color-scheme: dark" in drawn
    before = (folder.path / "report.html").read_bytes()
    write_report(RunFolder(folder.path))
    assert (folder.path / "report.html").read_bytes() == before  # no dates, no random names
