"""What `fedsim leaks` tries, what it says of it, and defenses that a replay adds."""

import dataclasses
from pathlib import Path

import pytest
import torch
from small_settings import DATA

from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.core.errors import FedsimError
from fedsim.lab.assess import as_defended
from fedsim.lab.leak_audits import federation_audit
from fedsim.lab.replay import prepare_replay
from fedsim.metrics.facts import facts
from fedsim.report.answers import Figure
from fedsim.report.answers_comparison import Defended
from fedsim.report.leaks import RECORDED, Tried, best_of, leaks_answer, strongest, tried_of

SMALL = (*DATA, "model=two_layer", "model.width=60", "federation.clients=4", "federation.rounds=5")
LISTED = (
    "leaks.attacks={labels: [ilrg], exact: [peeling], crafted: [stein_exact], text: [dager]}",
    "leaks.attacks.matching=[]",
    "leaks.attacks.table=[]",
)


def figure(name: str, value: float, baseline: float = 0.5) -> Figure:
    return Figure(metric=facts(name), value=value, baseline=baseline)


def behind(defense: str, accuracy: float = 0.9, failed: tuple[str, ...] = (), **figures: Figure) -> Defended:
    each = {attack: [own] for attack, own in figures.items()}
    return Defended(defense=defense, figures=each, failed=failed, costs={"accuracy": accuracy})


LEAKING, BLIND = figure("irec", 1.0), figure("irec", 0.4)


def test_the_best_of_every_figure_is_named_with_its_attack() -> None:
    figures = {"a": [figure("irec", 0.8)], "b": [figure("irec", 0.9), figure("psnr", 5, 10)], "c": [BLIND]}
    assert {name: attack for name, (attack, _) in best_of(figures).items()} == {"irec": "b"}


def test_of_every_kind_the_strongest_climb_the_ladder() -> None:
    own = behind("none", a=figure("irec", 0.8), b=figure("irec", 0.9), c=LEAKING, d=BLIND, failed=("e",))
    kinds = {"a": "labels", "b": "labels", "c": "exact", "d": "matching", "e": "matching"}
    assert strongest([own], kinds) == {"b", "c", "e"}


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([behind("dp", 0.5, a=BLIND), behind("noise", 0.8, a=BLIND)], "noise is the cheapest"),
        ([behind("dp", 0.5, a=BLIND), behind("noise", 0.8, a=LEAKING)], "dp is the cheapest"),
        ([behind("noise", 0.8, a=LEAKING)], "none of the defenses that were tried stops every attack"),
        ([behind("noise", 0.8, failed=("a",))], "none of the defenses that were tried stops every attack"),
    ],
)
def test_advice_is_the_cheapest_that_stops_all(steps: list[Defended], words: str) -> None:
    tried = [Tried(attack="a", kind="labels", sends=False, figures=[LEAKING], outcome="")]
    answer = leaks_answer([behind("none", a=LEAKING), *steps], tried, [])
    assert words in answer.text
    assert answer.leaks
    assert "only looks at what it receives recovers, with no defense: labels restored 100 %" in answer.text


def test_a_recording_tells_no_costs() -> None:
    stopping = dataclasses.replace(behind("noise", a=BLIND), costs={})
    said = leaks_answer([dataclasses.replace(behind(RECORDED, a=LEAKING), costs={}), stopping], [], []).text
    assert "noise stops every attack; what that costs, only a training can show" in said


def test_what_could_not_be_scored_is_not_said_to_be_safe() -> None:
    tried = [
        Tried(attack="a", kind="labels", sends=False, figures=[], outcome="failed"),
        Tried(attack="b", kind="crafted", sends=True, figures=[], outcome="does not fit: no"),
    ]
    answer = leaks_answer([behind("noise", failed=("a",))], tried, ["dp: takes about 9 s, 3 s left"])
    assert "nothing could be scored behind noise, of a" in answer.text
    assert "weights of its own: no attack of the list fits" in answer.text
    assert "Not tried: dp; below is why" in answer.text
    assert "blind guess" not in answer.text
    assert "may stay" not in answer.text


def test_attacks_that_do_not_fit_are_named_with_the_reason() -> None:
    audit = federation_audit([*SMALL, *LISTED, "defense=[clip]"])
    fit = {one.attack.label: not one.reason for one in audit.candidates}
    assert fit == {"ilrg": True, "peeling": True, "stein_exact": True, "dager": False}
    assert [one.attack.label for one in audit.candidates if one.sends] == ["stein_exact"]
    assert [own.label for own in audit.comparison.defenses][:2] == ["clip", "none"]
    tried = tried_of(
        [{"attack": "dager", "kind": "text", "sends": False, "reason": "no"}], behind("clip"), {}
    )
    assert tried[0].outcome == "does not fit: no"


def test_few_clients_of_few_rounds_are_attacked_but_all_of_a_sum() -> None:
    audit = federation_audit([*SMALL, *LISTED, "leaks.ladder=[noise,secure_aggregation]"])
    assert "federation.attacked_rounds=[1,3,5]" in audit.comparison.common
    attacked = {own.label: own.overrides[-1] for own in audit.comparison.defenses}
    assert attacked["noise"] == "federation.attacked_clients=[0,1]"
    assert attacked["secure_aggregation"] == "defense=[secure_aggregation]"


def test_attacks_are_not_chosen_by_name() -> None:
    with pytest.raises(FedsimError, match=r"leaks\.attacks\.exact"):
        federation_audit([*SMALL, "attack=ilrg"])


def test_a_replay_adds_defenses_to_recorded_replies(play_small, tmp_path: Path) -> None:
    run = play_small("federation.rounds=1", "defense=[noise]")
    experiment, source, _ = prepare_replay(run, ["defense=[clip]", "defense.clip.max_norm=0.01"])
    assert [type(own).__name__ for own in experiment.defenses] == ["Noise", "Clip"]
    recorded = source.observation(*source.observed()[0])
    defended = as_defended(recorded, experiment)
    norm = torch.cat([entry.flatten() for entry in defended.received.values()]).norm()
    assert norm.item() == pytest.approx(0.01, rel=1e-4)
    assert defended.bytes is None
    plain = dataclasses.replace(experiment, added_defenses=0)
    assert as_defended(recorded, plain) is recorded


@pytest.mark.parametrize("name", ["dp", "secure_aggregation"])
def test_what_a_recording_cannot_show_is_refused(play_small, name: str) -> None:
    run = play_small("federation.rounds=1")
    with pytest.raises(FedsimError, match="a recording cannot show"):
        prepare_replay(run, [f"defense=[{name}]"])


def test_a_defense_in_force_is_not_added_again(play_small) -> None:
    run = play_small("federation.rounds=1", "defense=[clip]")
    with pytest.raises(FedsimError, match="clip was in force already"):
        prepare_replay(run, ["defense=[clip]"])
    assert build.experiment(compose([*SMALL, "defense=[clip]"])).added_defenses == 0
