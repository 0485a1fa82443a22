"""Figures in words, their colours, the command that makes them again, and axes that show no rounding."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from made_runs import made_run
from matplotlib.figure import Figure

from fedsim.config.catalog import names
from fedsim.core.interfaces import Metric
from fedsim.metrics.chance import chance, chance_of_all
from fedsim.metrics.facts import KNOWN, facts, facts_of, legend, told
from fedsim.report.calibration import tables_of
from fedsim.report.figures import bars_figure, heat_figure, rounds_figure
from fedsim.report.figures.style import (
    BLIND,
    BREACH,
    CELL,
    DARK,
    INK,
    LEAK,
    PAPER,
    PLAIN,
    SOFT,
    TRUE,
    settle,
)
from fedsim.report.index import write_index
from fedsim.report.origin import command_of, defense_of, setting_of
from fedsim.report.sweep import SweepRow
from fedsim.report.threat import _intervals, batch_size
from fedsim.storage.findings import Finding
from fedsim.storage.runfolder import RunFolder


def test_every_metric_that_there_is_says_what_it_is() -> None:
    for name in names("metric"):
        own = KNOWN[name]
        assert own.title != name, name
        assert own.unit, name
        assert own.definition, name
        assert own.definition in own.in_full
        assert own.direction in own.in_full


def test_a_metric_of_others_says_it_through_the_summary() -> None:
    class HitRate(Metric):
        """Share of lucky hits."""

        title = "hits"
        unit = "share of shots"
        bounded = True

    kept = json.loads(json.dumps(told({"HitRate": HitRate(), "psnr": HitRate()})))
    assert set(kept) == {"HitRate"}  # ours are known
    assert facts("hit_rate", kept) == facts_of(HitRate(), "hit_rate")
    assert facts("hit_rate", kept).said(0.25) == "25 %"
    assert facts("hit_rate").title == "hit rate"  # nobody told
    assert facts("hit_rate", {"hit_rate": "nonsense"}).title == "hit rate"
    assert facts("x", {"x": {"title": 3, "nonsense": 1}}).title == "3"
    assert asdict(facts("lnacc", {"lnacc": {"title": "lies"}})) == asdict(KNOWN["lnacc"])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("irec", 1.0, "100 %"),
        ("psnr", 23.456, "23.5 dB"),
        ("lpips", 0.1234, "0.123"),
        ("image_error", 0.0, "0"),
    ],
)
def test_values_are_said_with_their_unit(name: str, value: float, said: str) -> None:
    assert facts(name).said(value) == said


def test_small_numbers_say_how_small_they_are_and_ends_of_zeros_go() -> None:
    assert facts("image_error").said(1.25e-7) == "1.2e-07"
    assert facts("lpips").said(0.00045) == "4.5e-04"  # below half of the last digit
    assert facts("lpips").said(0.00055) == "0.001"
    assert facts("lpips").said(12.5) == "12.5"
    assert facts("irec").said(0.125) == "12.5 %"
    assert facts("psnr").said(-3.0) == "-3 dB"
    assert facts("bytes").said(1234567.0) == "1,234,567"


@pytest.mark.parametrize(
    ("name", "value", "other", "better"),
    [
        ("psnr", 12.2, 12.0, True),
        ("psnr", 12.05, 12.0, False),  # a tenth of a dB
        ("psnr", 11.0, 12.0, False),
        ("irec", 0.51, 0.5, True),
        ("irec", 0.503, 0.5, False),  # half a point
        ("irec", 0.001, 0.0, True),  # who guesses blindly never gets there
        ("lpips", 0.1, 0.2, True),
        ("lpips", 0.3, 0.2, False),
        ("lpips", 0.2, 0.2, False),
    ],
)
def test_better_is_beyond_the_resolution_and_beyond_chance(
    name: str, value: float, other: float, better: bool
) -> None:
    assert facts(name).better(value, other) is better
    assert not facts(name).better(value, other, chance=5.0)


def test_chance_is_judged_by_what_went_the_other_way() -> None:
    assert chance([]) == 0
    assert chance([1.0, 2.0, 0.0]) == chance([-1.0]) == 0
    assert chance([5.0, -1.0, 2.0, -3.0]) == pytest.approx(1.96 * math.sqrt(2 * 10 / 4) / 2)
    assert chance([-5.0, 1.0]) == pytest.approx(1.96 * math.sqrt(2 / 2) / math.sqrt(2))
    assert chance_of_all([1.0, 1.0], [3.0, 4.0]) == pytest.approx(5 / 2)
    assert chance_of_all([9.0, -4.0], [0.0, 0.0]) == pytest.approx(1.96 * 4 / math.sqrt(2))
    assert chance_of_all([], []) == 0


def test_the_best_of_a_batch_are_named_and_costs_leak_nothing() -> None:
    assert facts("psnr_best6").title == f"{facts('psnr').title}, best 6 of a batch"
    assert facts("psnr").with_unit == f"{facts('psnr').title} ({facts('psnr').unit})"
    assert facts("psnr").direction == "higher leaks more"
    assert facts("lpips").direction == "lower leaks more"
    assert facts("bytes").direction == "lower is better"
    assert facts("accuracy").direction == "higher is better"
    for name in ("accuracy", "noticed", "detection", "irec", "ssim", "certified", "recovered", "rougel"):
        assert facts(name).bounded, name
    for name in ("loss", "bytes", "psnr", "lpips", "image_error", "epsilon"):
        assert not facts(name).bounded, name
    assert legend(["psnr", "x_y"]) == {"psnr": facts("psnr"), "x_y": facts("x_y")}
    assert facts("x_y").title == "x y"


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(c * share for c, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_words_and_lines_of_figures_can_be_seen_by_day_and_by_night() -> None:
    for ink in (INK, SOFT, CELL, LEAK, PLAIN, BLIND, BREACH):
        assert contrast(ink, PAPER) >= 4.5, ink
        assert contrast(DARK[ink], DARK[PAPER]) >= 4.5, ink
    assert contrast(TRUE, PAPER) >= 3  # bars
    assert contrast(DARK[TRUE], DARK[PAPER]) >= 3


def reds(figure: Figure) -> int:
    return sum(patch.get_facecolor()[:3] == red() for axes in figure.axes for patch in axes.patches)


def red() -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return to_rgb(LEAK)


def test_red_is_what_beats_a_blind_guess() -> None:
    def row(value: float | None, blind: float | None, chance: float = 0.0) -> SweepRow:
        found = {"metrics": (value,), "baselines": (blind,), "chances": (chance,)}
        return SweepRow(name="", settings=(), status="complete", link="", **found)

    for metric, better, worse in (("irec", 0.9, 0.1), ("lpips", 0.1, 0.9)):
        own = facts(metric)
        rows = [row(better, 0.5), row(0.5, 0.5), row(worse, 0.5), row(better, 0.5, 0.41), row(better, None)]
        leaks = [one.leaks(0, own) for one in rows]
        assert leaks == [True, False, False, False, False]
        assert reds(bars_figure(own, ["a"] * 5, [0.5] * 5, [True] * 5, [0.5] * 5, leaks)) == 1
    assert not row(0.9, 0.5).leaks(0, facts("accuracy"))
    assert reds(bars_figure(facts("accuracy"), ["a"], [0.9], [True])) == 0
    heat = heat_figure(facts("psnr"), ["a"], ["x", "y"], [[8.0, 9.0]], [["", ""]], 11.0)
    assert [patch.get_alpha() for patch in heat.axes[0].patches] == [0, 0]  # nothing leaks: no colour
    heat = heat_figure(facts("psnr"), ["a"], ["x", "y"], [[8.0, 19.0]], [["", ""]], 11.0)
    assert [patch.get_alpha() for patch in heat.axes[0].patches] == [0, 0.8]
    heat = heat_figure(facts("psnr"), ["a"], ["x", "y"], [[8.0, 19.0]], [["", ""]], 11.0, [[False, False]])
    assert [patch.get_alpha() for patch in heat.axes[0].patches] == [0, 0]  # within chance


def test_a_leak_is_drawn_over_the_accuracy_of_what_was_sent() -> None:
    sent = {1: 0.1, 9: 0.8, 5: 0.9}  # a round may make a model worse
    (axes,) = rounds_figure(
        "lnacc", {1: 1.0, 5: 0.4, 9: 0.6}, blind={1: 0.3, 5: 0.3, 9: 0.2}, leaks=[1], accuracy=sent
    ).axes
    attack, *_, blind = axes.get_lines()
    assert attack.get_xydata().tolist() == [[0.1, 1.0], [0.8, 0.6], [0.9, 0.4]]
    assert blind.get_xydata().tolist() == [[0.1, 0.3], [0.8, 0.2], [0.9, 0.3]]


def test_rounding_is_drawn_flat_and_differences_are_not() -> None:
    def heights(values: list[float]) -> tuple[float, float]:
        axes = Figure().subplots()
        axes.plot(values)
        settle(axes, values)
        return axes.get_ylim()

    low, high = heights([3.0, 3.0 + 1e-7, 3.0])
    assert high - low > 0.5
    assert low < 3 < high
    low, high = heights([3.0, 3.1])
    assert high - low < 0.2
    low, high = heights([0.0, 0.0])
    assert low < 0 < high
    (axes,) = rounds_figure("loss", {1: 2.0, 2: 2.0 + 1e-9}).axes
    assert axes.get_ylim()[1] - axes.get_ylim()[0] > 0.3


def made(folder: Path, kind: str, config: dict[str, object]) -> tuple[RunFolder, dict[str, object]]:
    run = RunFolder(folder)
    run.begin(kind, yaml.safe_dump(config))
    return run, config


def test_the_command_makes_it_again(tmp_path: Path) -> None:
    asked = {"choices": {"asked": ["attack=ilrg", "defense=[clip,noise]"]}}
    run, config = made(tmp_path / "run", "run", asked)
    assert command_of(run, {}, config) == "fedsim attack=ilrg 'defense=[clip,noise]'"
    part, config = made(tmp_path / "part", "run", {"choices": {"asked": ["experiment=ilrg_table1"]}})
    assert command_of(part, {}, config) == "fedsim kind=run experiment=ilrg_table1"
    sweep, config = made(tmp_path / "sweep", "sweep", {"overrides": ["attack=ilrg,idlg"]})
    assert command_of(sweep, {}, config) == "fedsim -m attack=ilrg,idlg"
    grid, config = made(tmp_path / "grid", "comparison", {"common": []})
    assert command_of(grid, {"asked": ["attack=[ilrg]"]}, config) == "fedsim compare 'attack=[ilrg]'"
    games = {value: {"choices": {"asked": ["data=tiny", f"proof.steps={value}"]}} for value in "23"}
    game, config = made(tmp_path / "game", "game", {"games": games})
    assert command_of(game, {}, config) == "fedsim forge -m data=tiny proof.steps=2,3"
    silent, config = made(tmp_path / "silent", "run", {"choices": {}})
    assert command_of(silent, {}, config) == ""


def test_what_was_asked_for_is_kept_and_no_setting(play_small) -> None:
    folder = play_small("federation.rounds=1", "jobs=2")
    config = yaml.safe_load(folder.config_text())
    assert "federation.rounds=1" in config["choices"]["asked"]
    assert "jobs=2" not in config["choices"]["asked"]
    page = (folder.path / "report.html").read_text()
    assert "fedsim data=synthetic" in page
    assert "federation.rounds=1" in page.split("<h2>How it was made</h2>")[1]
    assert folder.summary()["answer"].startswith("ilrg ")
    assert folder.summary()["answer"].split(" (")[0] in page


def test_names_and_facts() -> None:
    one, other = (
        {"choices": {"model": "fcn3", "data": "mnist"}},
        {"choices": {"model": "mlp", "data": "mnist"}},
    )
    assert setting_of([one]) == "fcn3 on mnist"
    assert setting_of([one, other]) == "2 models on mnist"
    assert setting_of([{}]) == ""
    assert defense_of({"defense": {"clip": {}, "noise": {}}}) == "clip then noise"
    assert batch_size(400, {30}) == "30 examples (400 were asked for)"
    assert batch_size(24, {24}) == "24 examples"
    assert batch_size(24, {12, 24}) == "12 to 24 examples"
    assert batch_size(24, ()) == "24"


def test_the_index_says_what_came_of_a_run_and_shows_leaks_in_red(tmp_path: Path) -> None:
    leaking, safe = made_run(tmp_path / "leaking", lnacc=0.75), made_run(tmp_path / "safe", lnacc=0.25)
    for folder in (leaking, safe):
        folder.write_summary(folder.summary() | {"answer": f"All of {folder.path.name}, in short."})
    rows = write_index(tmp_path).read_text().split("<tr data-number")[1:]
    assert len(rows) == 2
    for row in rows:
        name = "leaking" if ">leaking<" in row else "safe"
        assert f">All of {name}, in short.<" in row
        assert ('class="n leak"' in row) == (name == "leaking")


def test_what_an_audit_does_again_is_said_in_words() -> None:
    rule = {"top": 1, "random": None, "detection": 0.95, "every": 1}
    assert _intervals(rule) == (
        "1 largest intervals of 1 step, and as many others as find a false one in 95 % of cases,"
    )
    assert _intervals(rule | {"random": 2, "every": 3}) == "1 largest and 2 random intervals of 3 steps"


def test_a_calibration_is_shown_by_case() -> None:
    rows = [("a", "l1", 1.0), ("a", "l2", 2.0), ("delta", "delta", 3.0), ("b", "l1", 4.0), ("b", "l2", 5.0)]
    found = [Finding(study="s", case=case, figure=figure, value=value) for case, figure, value in rows]
    assert tables_of(found) == [
        (("l1", "l2"), [("a", [1.0, 2.0]), ("b", [4.0, 5.0])]),
        (("delta",), [("delta", [3.0])]),
    ]
