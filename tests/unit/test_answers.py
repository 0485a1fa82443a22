"""The sentences that reports begin with, over made-up figures."""

from dataclasses import replace

import pytest
from made_move import a_move

from fedsim.core.types import Verdict
from fedsim.metrics.chance import chance, chance_of_all
from fedsim.metrics.facts import facts
from fedsim.report.answers import (
    Attacked,
    Figure,
    SweptRun,
    figures_of,
    leading,
    listed,
    run_answer,
    sweep_answer,
)
from fedsim.report.answers_comparison import Defended, comparison_answer, costs_in_words, defense_sentence
from fedsim.report.answers_integrity import (
    audit_answer,
    calibration_answer,
    game_answer,
    proof_answer,
    unaudited_answer,
)
from fedsim.storage.findings import Finding
from fedsim.storage.scores import ScoreRow
from fedsim.storage.status import Standing, Status

COMPLETE = Standing(Status.COMPLETE)


def scores(metric: str, *pairs: tuple[float, float | None]) -> list[ScoreRow]:
    return [
        ScoreRow(round=1, client=client, attack="ilrg", metric=metric, value=value, baseline=baseline)
        for client, (value, baseline) in enumerate(pairs)
    ]


def attacked(rows: list[ScoreRow], **more: object) -> Attacked:
    made = Attacked(
        attack="ilrg",
        setting="fcn3 on mnist",
        defense="",
        figures=figures_of(rows),
        standing=COMPLETE,
        observed=len(rows),
        guessed=len(rows),
        clients=len(rows),
    )
    return replace(made, **more)


def test_a_difference_within_chance_or_resolution_is_no_leak() -> None:
    mixed = figures_of(scores("irec", (0.90, 0.80), (0.80, 0.85), (0.79, 0.80)))["labels"]
    assert mixed.value > mixed.baseline
    assert mixed.chance == pytest.approx(1.96 * ((2 * (0.05**2 + 0.01**2) / 3) ** 0.5) / 3**0.5)
    assert not mixed.leaks
    assert str(mixed) == "labels restored 83 % (a blind guess: 81.7 %; the difference is within chance)"
    close = figures_of(scores("irec", (0.826, 0.825), (0.829, 0.825)))["labels"]
    assert (close.chance, close.leaks) == (0, False)  # half a point of 100
    assert figures_of(scores("irec", (0.831, 0.825), (0.831, 0.825)))["labels"].leaks
    assert not figures_of(scores("psnr", (12.05, 12.0)))["images"].leaks
    assert figures_of(scores("psnr", (12.15, 12.0)))["images"].leaks
    assert figures_of(scores("certified", (0.001, 0.0)))["examples for certain"].leaks


def test_who_refused_comes_first_and_a_sum_is_no_batch() -> None:
    rows = scores("psnr", (40.0, 12.0), (41.0, 12.0))
    said = run_answer(attacked(rows, refused=3, summed=True, clients=0)).sentences
    assert said[0] == "A client noticed what it was sent, and refused to answer, 3 times."
    assert "from 2 sums over all clients' batches (fcn3" in said[1]
    assert "from 2 batches of 2 clients" in run_answer(attacked(rows)).text


def test_one_batch_recovered_among_many_is_no_chance() -> None:
    found = figures_of(scores("psnr", (150.0, 12.0), *[(10.0, 12.0)] * 11))["images"]
    assert 0 < found.chance < found.value - 12
    assert found.leaks
    lower = figures_of(scores("lpips", (0.0, 0.5), (0.55, 0.5), (0.45, 0.5)))["images"]  # lower leaks more
    assert lower.chance > 0
    assert lower.leaks == (0.5 - lower.value > lower.chance)


def test_seeds_that_disagree_are_chance_too() -> None:
    assert chance_of_all([0.05, -0.02, -0.02], [0.0] * 3) == pytest.approx(chance([0.05, -0.02, -0.02]))
    assert chance_of_all([0.05, 0.02], [0.3, 0.4]) == pytest.approx(0.25)  # of a mean over two runs
    assert (chance([]), chance([0.1, 0.2])) == (0.0, 0.0)


def test_a_leak_is_said_with_whose_how_surely_and_beside_a_blind_guess() -> None:
    answer = run_answer(attacked(scores("irec", (1.0, 0.5), (0.9, 0.4)), defense="noise"))
    assert answer.text == (
        "ilrg recovered labels from 2 batches of 2 clients (fcn3 on mnist, behind noise): "
        "labels restored 95 % (a blind guess: 45 %), better on each of 2 batches."
    )
    assert answer.leaks
    some = run_answer(attacked(scores("irec", (1.0, 0.5), (0.3, 0.4))))
    assert "better on 1 of 2 batches" in some.text
    assert "with no defense" in some.text


@pytest.mark.parametrize(
    ("metric", "pair"), [("irec", (0.4, 0.5)), ("irec", (0.5, 0.5)), ("lpips", (0.6, 0.5))]
)
def test_at_or_below_the_baseline_is_no_leak(metric: str, pair: tuple[float, float]) -> None:
    answer = run_answer(attacked(scores(metric, pair)))
    assert answer.text.startswith("ilrg is no better than a blind guess on 1 batch of 1 client")
    assert "recovered" not in answer.text
    assert not answer.leaks


def test_of_two_things_one_may_leak() -> None:
    rows = scores("lnacc", (1.0, 0.3)) + scores("psnr", (9.0, 11.0)) + scores("embedding_cosine", (0.1, 0.8))
    answer = run_answer(attacked(rows, guessed=1))
    assert answer.leaks
    assert answer.sentences[1] == (
        "No better than a blind guess: images (likeness of images 9 dB, a blind guess: 11 dB) and embeddings."
    )


def test_lower_is_a_leak_where_lower_is_better() -> None:
    assert run_answer(attacked(scores("image_error", (0.001, 0.9)))).leaks
    exact = run_answer(attacked(scores("image_error", (1e-9, 0.9)))).text
    assert "error of images 1.0e-09" in exact  # not 0


def test_without_a_baseline_nobody_says_leak() -> None:
    answer = run_answer(attacked(scores("irec", (0.9, None))))
    assert not answer.leaks
    assert "what a blind guess gets is not known" in answer.text


def test_scores_that_are_not_finite_do_not_count() -> None:
    rows = scores("irec", (1.0, 0.5), (float("nan"), 0.5), (float("inf"), 0.5))
    assert "labels restored 100 %" in run_answer(attacked(rows)).text
    assert not run_answer(attacked(scores("irec", (float("nan"), 0.5)))).leaks


def test_what_went_wrong_is_said() -> None:
    gave_up = run_answer(attacked([], standing=Standing(Status.GAVE_UP, "a batch of one."), defense="mixup"))
    assert gave_up.text == "ilrg gave up behind mixup: a batch of one."
    failed = run_answer(attacked([], standing=Standing(Status.FAILED, "disk full")))
    assert failed.text == "This run did not complete (failed)."
    fewer = run_answer(attacked(scores("irec", (1.0, 0.1)), observed=4, faults=3))
    assert fewer.sentences[1:] == ("It answered for 1 of 4 batches.", "3 replies or attacks failed.")
    assert (
        run_answer(attacked([], standing=Standing(None))).text == "This run did not complete (not finished)."
    )


def test_runs_without_scores() -> None:
    blind = run_answer(attacked([], blindly=True, guessed=3))
    assert blind.text.startswith("ilrg answered for 3 batches")
    assert "No truth is known" in blind.text
    trained = run_answer(attacked([], attack="none", accuracy=0.912))
    assert trained.text.endswith("was trained with no defense, to a test accuracy of 91.2 %.")
    assert "nothing that could be scored" in run_answer(attacked([])).text


def test_a_thing_is_said_by_its_most_telling_metric_and_a_stranger_by_its_own() -> None:
    names = ["bytes", "leacc", "irec", "ssim", "own_metric"]
    assert leading(names) == {"labels": "irec", "images": "ssim", "own metric": "own_metric"}
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed([]) == ""


def figure(value: float, baseline: float | None = 0.5, name: str = "irec") -> Figure:
    return Figure(metric=facts(name), value=value, baseline=baseline)


def test_a_sweep_says_most_and_least() -> None:
    runs = [SweptRun(label=f"s={n}", figure=figure(value)) for n, value in enumerate((0.9, 0.6, 0.4))]
    answer = sweep_answer(runs, failed=1)
    assert answer.sentences == (
        "Most with s=0: labels restored 90 % (a blind guess: 50 %); "
        "least with s=2: labels restored 40 % (a blind guess: 50 %).",
        "1 of 3 runs is no better than a blind guess.",
        "1 run did not complete.",
    )
    assert "Every run beats a blind guess." in sweep_answer(runs[:2], 0).text
    assert "All 2 runs give the same" in sweep_answer([runs[0], runs[0]], 0).text
    lost = sweep_answer([runs[2], runs[2]], 0)
    assert "All 2 runs are no better than a blind guess." in lost.text
    assert not lost.leaks
    assert sweep_answer([SweptRun(label="", figure=None)], 0).text == "None of 1 run has a figure to compare."


def defended(name: str, value: float | None, accuracy: float = 0.9, **more: object) -> Defended:
    figures = {"ilrg": [] if value is None else [figure(value)]}
    made = Defended(defense=name, figures=figures, costs={"accuracy": accuracy, "bytes": 100.0})
    return replace(made, **more)


def test_a_comparison_says_what_each_defense_stops_and_costs() -> None:
    cheap = replace(defended("sparse", 0.7), costs={"accuracy": 0.9, "bytes": 10.0})
    answer = comparison_answer([defended("none", 0.9), defended("noise", 0.5, 0.8), cheap])
    assert answer.sentences == ("Of 2 defenses, noise stops every attack.",)
    assert answer.points == (
        "none: leaks to ilrg (labels restored 90 %, a blind guess: 50 %); test accuracy 90.0 %, "
        "100 bytes a reply.",
        "noise: stops ilrg; costs 10.0 points of test accuracy (80.0 % instead of 90.0 %), as many bytes.",
        "sparse: still leaks to ilrg (labels restored 70 %, a blind guess: 50 %); costs no test accuracy, "
        "10 bytes a reply instead of 100.",
    )
    assert answer.leaks


def test_no_defense_has_the_merit_of_an_attack_that_never_works() -> None:
    weak = {"ilrg": [figure(0.9)], "idlg": [figure(0.2)]}
    both = [replace(defended(name, 0.9), figures=weak, gave_up=["rgap"]) for name in ("none", "noise")]
    answer = comparison_answer(both)
    assert answer.sentences == (
        "noise does not stop every attack.",
        "rgap gave up everywhere.",
        "Even with no defense, idlg got no more than a blind guess.",
    )
    assert "idlg" not in answer.points[1]


def test_a_comparison_of_nothing_claims_nothing() -> None:
    assert "cannot say" in comparison_answer([defended("none", None)]).text
    unknown = replace(defended("noise", None), figures={"ilrg": [figure(0.9, None)]})
    assert "cannot say" in comparison_answer([unknown]).text
    assert comparison_answer([defended("noise", 0.5)]).text.startswith("Nothing leaks")
    gone = replace(defended("noise", None), gave_up=["ilrg"])
    assert defense_sentence(gone, defended("none", 0.9)).startswith("noise: stops ilrg;")
    broken = replace(defended("noise", None), failed=["ilrg"], costs={})
    assert defense_sentence(broken, defended("none", 0.9)) == "noise: ilrg did not complete."
    assert not broken.stops_all
    assert costs_in_words({"accuracy": 0.95}, {"accuracy": 0.9}).startswith("gains 5.0 points")


def verdict(client: int, accepted: bool) -> Verdict:
    return Verdict(round=1, client=client, accepted=accepted)


def test_an_audit_says_who_was_caught_and_who_was_wronged() -> None:
    caught = audit_answer([verdict(0, True), verdict(1, False)], {1: "free_rider"})
    assert caught.sentences == (
        "The audit caught free_rider (client 1) every time: 1 of 1 proof rejected.",
        "No honest client was rejected (1 proof).",
    )
    assert not caught.breached
    missed = audit_answer([verdict(0, False), verdict(1, True)], {1: "blindfold"})
    assert missed.breached
    assert "never caught blindfold" in missed.text
    assert "wrongly rejected 1 of 1 proof of honest clients (client 0)" in missed.text
    half = audit_answer([verdict(1, True), verdict(1, False)], {1: "forger"})
    assert "in 1 of 2 proofs; 1 went through" in half.text
    assert audit_answer([verdict(0, True)], {}).text == "Nobody cheated, and none of 1 proof was rejected."
    many = dict.fromkeys(range(20), "free_rider")
    assert "(20 clients)" in audit_answer([verdict(client, False) for client in many], many).text
    assert (
        unaudited_answer({1: "free_rider"}, 3).text == "1 of 3 clients cheated (free_rider); nobody looked."
    )


def test_a_game_says_how_many_claims_were_accepted() -> None:
    moves = [replace(a_move("box", number), game="") for number in range(4)]
    assert game_answer(moves, COMPLETE).text == "2 of 4 claims were accepted: box 2 of 4."
    lost = [replace(move, accepted=False) for move in moves]
    answer = game_answer(lost, COMPLETE)
    assert answer.sentences[0] == "0 of 4 claims were accepted: no forgery got through (box)."
    assert answer.sentences[1] == "The nearest ended 10 times as far off as honest recomputation does."
    assert not answer.breached
    both = game_answer([*moves, *(replace(move, forgery="kong") for move in lost)], COMPLETE)
    assert both.sentences[1] == "Never accepted: kong."
    assert game_answer([], Standing(Status.INTERRUPTED)).sentences == (
        "This game did not complete: interrupted.",
        "No claim was made.",
    )


def test_proofs_and_calibrations() -> None:
    made = proof_answer(setting="mlp on mnist", steps=4, size=1234, standing=COMPLETE)
    assert "4 steps of mlp on mnist is recorded and sealed in 1,234 bytes" in made.text
    broken = proof_answer(setting="", steps=0, size=0, standing=Standing(Status.FAILED, "x"))
    assert broken.text == "This proof did not complete: failed: x."
    found = [Finding(study="reproduction", case="k=1", figure="delta", value=1e-6)]
    wordy = [replace(found[0], case="k=1, delta for l2")]
    assert "a delta of 1e-06 (k=1, l2) tells" in calibration_answer(wordy, "", COMPLETE).text
    assert "a delta of 1e-06 (k=1) tells" in calibration_answer(found, "mlp on mnist", COMPLETE).text
    assert calibration_answer([], "", COMPLETE).text == "Nothing was measured."
