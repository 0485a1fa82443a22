"""Pages of every kind in Chromium, on a phone and on a desk, by day and by night."""

from collections.abc import Callable
from pathlib import Path

import pytest
from browser import DESK, PHONE, assert_looks_well, looked_at, needs_browser
from small_settings import DATA, SMALL

from fedsim.commands.compare import compare_by
from fedsim.commands.forge import forge_by
from fedsim.commands.run import play
from fedsim.config.compose import quoted
from fedsim.report.write import write_report
from fedsim.storage.runfolder import RunFolder

pytestmark = needs_browser
KINDS = ("run", "images", "sweep", "comparison", "game", "audit")
PLAYED = tuple(text for text in SMALL if not text.startswith(("name=", "metric=")))


def make_all(folder: Path) -> None:
    """A folder of each kind, as small as it goes; images wide enough to scroll on a phone."""
    into = {kind: quoted(str(folder / kind)) for kind in KINDS}
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
