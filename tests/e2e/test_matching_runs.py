"""Image attacks in whole runs: pictures, Ctrl-C, time budget, divergence, BatchNorm, disclosure."""

import json
import logging

import pytest

from fedsim.attacks.privacy.matching.watch import Watch
from fedsim.storage.runfolder import RunFolder

IMAGES = ("model=mlp", "model.width=40", "federation.rounds=1", "metric=[lnacc,psnr,ssim,psnr_best6]")
ONE = ("federation.clients=1",)


def metric(folder: RunFolder, name: str) -> float:
    return float(folder.summary()["metrics"][name])


@pytest.mark.drawn
def test_an_exact_batch_goes_from_round_to_report(play_small) -> None:
    folder = play_small(*IMAGES, "attack=span_matching")
    assert metric(folder, "psnr") > 100
    assert metric(folder, "psnr_best6") >= metric(folder, "psnr")
    assert metric(folder, "lnacc") == 1.0
    assert (folder.path / "figures" / "pictures_1_0.svg").exists()
    page = (folder.path / "report.html").read_text()
    assert "Images: true, guessed, difference" in page
    assert "own residual" in page


@pytest.mark.drawn
def test_the_curve_of_the_objective_is_in_the_report(play_small) -> None:
    folder = play_small(*IMAGES, *ONE, "attack=ig", "attack.optimiser.iterations=20")
    trace = folder.guess(1, 0).trace
    assert len(trace) == 21  # the start and 20 steps
    assert trace[-1] < 0.5 * trace[0]
    assert (folder.path / "figures" / "trace.svg").exists()


def test_the_same_seed_gives_the_same_images(play_small) -> None:
    made = [
        play_small(*IMAGES, *ONE, "attack=ig", "attack.optimiser.iterations=20", folder=str(i))
        for i in (1, 2)
    ]
    first, second = (folder.guess(1, 0).images for folder in made)
    assert first.equal(second)


def test_ctrl_c_keeps_the_best_so_far_and_the_report(play_small, tmp_path, monkeypatch) -> None:
    see = Watch.see

    def interrupt(self, value, variables) -> None:
        see(self, value, variables)
        if len(self.trace) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "see", interrupt)
    with pytest.raises(KeyboardInterrupt):
        play_small(*IMAGES, "attack=ig")
    folder = RunFolder(tmp_path / "run")
    assert len(folder.guess(1, 0).trace) == 7
    assert [row.client for row in folder.scores() if row.metric == "psnr"] == [0]
    assert folder.summary()["status"] == "interrupted"
    assert (folder.path / "figures" / "pictures_1_0.svg").exists()
    assert "did not complete" in (folder.path / "report.html").read_text()


def test_a_time_budget_ends_the_search(play_small) -> None:
    folder = play_small(
        *IMAGES, *ONE, "attack=ig", "attack.optimiser.iterations=1000000", "attack.seconds=0.5"
    )
    assert folder.guess(1, 0).images is not None
    assert folder.summary()["status"] == "complete"


def test_a_diverging_search_begins_again_and_says_so(play_small, caplog) -> None:
    wild = ("attack=gradinversion_matching", "attack.optimiser.step=1e30", "attack.optimiser.box=false")
    with caplog.at_level(logging.WARNING), pytest.raises(Exception, match="diverged from 3 seeds"):
        play_small(*IMAGES, *ONE, *wild)
    assert "begins again" in caplog.text


def test_batch_norm_on_the_private_batch_is_part_of_the_threat_model(play_small) -> None:
    folder = play_small(
        *ONE,
        "data.shape=[1,12,12]",
        "model=convnet",
        "model.width=4",
        "federation.rounds=1",
        "federation.batch_norm=train",
        "attack=gradinversion_matching",
        "attack.optimiser.iterations=4",
        "metric=[psnr]",
    )
    assert next(folder.observations()).batch_norm == "train"
    assert "BatchNorm on the private batch" in (folder.path / "report.html").read_text()
    assert metric(folder, "psnr") > 0


def test_disclosed_class_counts_reach_the_attack_and_are_not_scored(play_small) -> None:
    folder = play_small(
        *IMAGES,
        *ONE,
        "attack=ig",
        "~attack.labels",
        "+attack.labels={_target_: fedsim.attacks.privacy.matching.labels.Given}",
        "attack.optimiser.iterations=3",
        "federation.disclose=[num_examples,class_counts]",
    )
    observation, truth = next(folder.observations()), folder.truth(1, 0)
    assert list(observation.class_counts) == truth.labels.bincount(minlength=4).tolist()
    assert "psnr" in folder.summary()["metrics"]
    assert "lnacc" not in folder.summary()["metrics"]


def test_an_update_is_inverted_by_playing_its_steps(play_small) -> None:
    steps = ("federation=fedavg", "federation.local_steps=2", "federation.batch_size=2")
    folder = play_small(*IMAGES, *ONE, *steps, "attack=ig_fedavg", "attack.optimiser.iterations=300")
    assert metric(folder, "psnr") > json.loads((folder.path / "summary.json").read_text())["baseline"]["psnr"]


def test_features_behind_convolutions_are_scored_example_by_example(play_small) -> None:
    folder = play_small(
        *ONE,
        "data.shape=[3,32,32]",
        "model=lenet5",
        "federation.rounds=1",
        "attack=peeling",
        "metric=[embedding_cosine,embedding_error,psnr]",
    )
    assert metric(folder, "embedding_error") < 1e-3
    assert metric(folder, "embedding_cosine") > 0.999
    assert "psnr" not in folder.summary()["metrics"]


def test_an_attack_that_cannot_work_on_a_model_says_what_to_do(play_small) -> None:
    with pytest.raises(Exception, match=r"two linear layers.*Remedy"):
        play_small(*ONE, "federation.rounds=1", "attack=peeling")
    with pytest.raises(Exception, match=r"batch of one.*Remedy"):
        play_small(*IMAGES, *ONE, "attack=rgap", folder="second")


def test_a_metric_that_cannot_score_is_reported_and_costs_nothing_else(play_small) -> None:
    small = ("data.shape=[2,5,5]", "metric=[psnr,ssim,lpips]", "attack.optimiser.iterations=3")
    folder = play_small(*ONE, "model=mlp", "model.width=40", "federation.rounds=1", "attack=ig", *small)
    assert "psnr" in folder.summary()["metrics"]
    assert "at least 6 pixels" in " ".join(row.error for row in folder.scores())
    assert (folder.path / "figures" / "pictures_1_0.svg").exists()


def test_features_are_judged_by_the_statistics_that_the_client_used(play_small) -> None:
    folder = play_small(
        *ONE,
        "data.shape=[1,12,12]",
        "model=convnet",
        "model.width=4",
        "federation.rounds=1",
        "federation.batch_size=1",
        "federation.batch_norm=train",
        "attack=peeling",
        "metric=[embedding_error]",
    )
    assert metric(folder, "embedding_error") < 1e-3
