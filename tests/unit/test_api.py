"""The way in from Python: what `import fedsim` offers, and how it fails."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from documents import README, python_blocks
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from notebooks import run_cell
from torch import Tensor, nn
from torch.nn import functional

import fedsim
from fedsim.attacks.privacy.exact.peeling import Peeling
from fedsim.core.errors import FedsimError
from fedsim.core.training import weights_of
from fedsim.data.synthetic import synthetic

SHAPE = (1, 8, 8)
DATA = synthetic(shape=SHAPE, num_classes=4, train_size=60, test_size=20)
SMALL = {"data": "synthetic", "data.shape": [1, 8, 8], "data.num_classes": 4, "data.train_size": 120}


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 4))


class Standardise(nn.Module):
    """Somebody else's normalisation."""

    def forward(self, images: Tensor) -> Tensor:
        return (images - 0.3) / 0.25


class Broken(fedsim.Metric):
    """Fails."""

    def score(self, guess: fedsim.Reconstruction, truth: fedsim.Truth) -> fedsim.Score | None:
        raise ValueError("no idea")


def batch(size: int) -> tuple[Tensor, Tensor]:
    return DATA.train.batch(torch.arange(size)), DATA.train.labels[:size]


def gradient(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(functional.cross_entropy(model(images), labels), list(model.parameters()))


def far_apart(left: fedsim.Observation, right: fedsim.Observation) -> float:
    return max(float((left.received[name] - right.received[name]).abs().max()) for name in left.received)


def test_importing_fedsim_imports_nothing_heavy_and_its_names_come_when_asked_for() -> None:
    code = (
        "import sys, fedsim\n"
        "heavy = {'torch', 'flwr', 'ray', 'hydra', 'pandas', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert set(fedsim.__all__) <= set(dir(fedsim))\n"
        "assert not heavy & set(sys.modules)\n"
        "for name in fedsim.__all__: getattr(fedsim, name)\n"
        "from fedsim import *\n"
        "assert attack('ilrg') and Task\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'atack'"):
        fedsim.atack  # noqa: B018


def test_type_checkers_and_python_find_the_same_names_in_the_same_places() -> None:
    tree = ast.parse(Path(fedsim.__file__).read_text())
    typed, _ = [node for node in tree.body if isinstance(node, ast.If)]
    found = {node.module: tuple(alias.name for alias in node.names) for node in typed.body}
    assert found == fedsim._HOMES
    named = {name for names in found.values() for name in names}
    assert named | {"FedsimError", "__version__"} == set(fedsim.__all__)


def test_the_readme_attacks_ones_own_model_and_gradient_in_six_lines(capsys) -> None:
    section = README.read_text().partition("## From Python")[2]
    shown = section.partition("```text\n")[2].partition("```")[0]
    assert len([line for line in python_blocks(README)[0].splitlines() if line.strip()]) <= 6
    torch.manual_seed(0)
    run_cell(python_blocks(README)[0], "README", {})
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    stored = [line.split() for line in shown.splitlines()]
    assert [line[0] for line in printed] == [line[0] for line in stored]
    assert [line for line in printed if line[0] in ("metric", "leacc", "lnacc", "irec", "ssim")] == [
        line for line in stored if line[0] in ("metric", "leacc", "lnacc", "irec", "ssim")
    ]
    for lines in (printed, stored):
        assert float({line[0]: line[1] for line in lines}["psnr"]) > 100


def test_a_part_is_a_yaml_or_a_class_with_settings_at_any_depth() -> None:
    own = Peeling(starts=3)
    attack = fedsim.attack("span_matching", seconds=60, optimiser={"iterations": 7}, **{"first.starts": 9})
    assert (attack.seconds, attack.optimiser.iterations, attack.first.starts) == (60, 7, 9)
    assert attack.parametrisation == "span"  # the preset's own
    assert fedsim.attack("ig", first=own).first is own
    assert fedsim.attack(Peeling, starts=5).starts == 5
    assert fedsim.attack(f"{Peeling.__module__}.Peeling", starts=5).starts == 5
    assert fedsim.attack("rlu", public={"data": DATA}).public.images.shape[1:] == SHAPE
    assert fedsim.defense("noise", sigma=0.5).sigma == 0.5
    assert fedsim.metric("psnr_best6").best == 6
    assert fedsim.dataset("synthetic", shape=[1, 8, 8]).task.input_shape == SHAPE
    first, second = (fedsim.model("mlp", task=DATA.task, seed=seed, width=5) for seed in (1, 2))
    assert not torch.equal(first.output.weight, second.output.weight)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fedsim.attack("ilgr"), r"expected one of .*got 'ilgr'\. Did you mean ilrg"),
        (lambda: fedsim.defense("noize"), r"got 'noize'\. Did you mean noise"),
        (lambda: fedsim.attack("ig", secnds=1), r"attack ig: .*got 'secnds'\. Did you mean seconds"),
        (
            lambda: fedsim.attack("ig", optimiser={"iteratons": 1}),
            r"ig\.optimiser: .*Did you mean iterations",
        ),
        (lambda: fedsim.attack("ig", **{"seconds.x": 1}), "expected seconds to hold settings"),
        (lambda: fedsim.attack("nowhere.Attack"), "'nowhere' cannot be imported.*Remedy"),
        (lambda: fedsim.attack(f"{Peeling.__module__}.Peling"), r"Did you mean Peeling"),
        (lambda: fedsim.attack("fedsim.metrics.psnr.PSNR"), "expected a Attack, got PSNR"),
        (lambda: fedsim.attack("os.system"), "attack"),
        (lambda: fedsim.dataset("npz"), r"expected a path, got none\. Remedy"),
        (lambda: fedsim.run(ronds=2), r"got 'ronds'\. Did you mean rounds"),
        (lambda: fedsim.run(attack=Peeling()), "attack: expected plain values, got Peeling.*Remedy"),
    ],
)
def test_what_is_unknown_is_refused_with_what_was_probably_meant(make, words: str) -> None:
    with pytest.raises(FedsimError, match=words):
        make()


def test_an_application_of_hydras_goes_on_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("setting: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        before = GlobalHydra.instance().hydra
        fedsim.attack("ilrg")
        assert GlobalHydra.instance().is_initialized()
        assert type(GlobalHydra.instance().hydra) is type(before)
        assert compose("own").setting == 1


def test_a_gradient_by_hand_is_what_a_client_sends() -> None:
    model, (images, labels) = network(), batch(6)
    before = weights_of(model)
    seen = fedsim.observe(model, images, labels)
    by_hand = fedsim.observation(model, gradient(model, images, labels), num_examples=6)
    named = dict(zip(before, gradient(model, images, labels), strict=True))
    assert far_apart(seen, by_hand) < 1e-6
    assert far_apart(by_hand, fedsim.observation(model, named)) == 0
    assert (seen.kind, seen.num_examples, seen.local_steps, seen.loss) == ("gradient", 6, None, None)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(model).items())
    assert model.training


def test_an_update_is_of_as_many_steps_as_are_asked_for() -> None:
    model, (images, labels) = network(), batch(6)
    told = {"kind": "update", "learning_rate": 0.1}
    one, three = (fedsim.observe(model, images, labels, local_steps=steps, **told) for steps in (1, 3))
    plain = fedsim.observe(model, images, labels)
    for name in plain.received:
        assert torch.allclose(one.received[name], -0.1 * plain.received[name], atol=1e-6)
    assert (three.local_steps, three.learning_rate, three.num_examples) == (3, 0.1, 6)
    assert far_apart(one, three) > 1e-3
    silent = fedsim.observe(model, images, labels, disclose=["loss", "class_counts"], **told)
    assert (silent.learning_rate, silent.num_examples) == (None, None)
    assert silent.class_counts == labels.bincount(minlength=4).tolist()


@pytest.mark.parametrize("rules", [[], ["federation=fedavg", "federation.local_lr=0.1"]])
def test_what_is_observed_is_what_a_federation_shows(rules: list[str], small, play_small) -> None:
    told = ["defense=[clip,noise]", "federation.rounds=1", "federation.clients=1", "attack=none"]
    steps = ["federation.local_steps=1"] if rules else []
    played = play_small(*told, *rules, *steps)
    real, truth = played.observation(1, 0), played.truth(1, 0)
    how = {"kind": "update", "learning_rate": 0.1} if rules else {}
    model = small(*told).model
    seen = fedsim.observe(
        model, truth.images, truth.labels, defenses=["clip", fedsim.defense("noise")], **how
    )
    assert far_apart(seen, real) < 1e-6
    assert far_apart(fedsim.observe(model, truth.images, truth.labels, **how), real) > 1e-3
    assert (seen.kind, seen.num_examples, seen.learning_rate) == (
        real.kind,
        real.num_examples,
        real.learning_rate,
    )


def test_defenses_may_be_known_and_may_change_the_rules() -> None:
    model, (images, labels) = network(), batch(10)
    noisy = fedsim.observe(model, images, labels, defenses=["noise"], knows_defenses=True)
    assert noisy.defense is not None
    assert noisy.defense.noise == 0.01
    assert fedsim.observe(model, images, labels, defenses=["noise"]).defense is None
    stepped = fedsim.observe(model, images, labels, defenses=["local_steps"])
    assert (stepped.kind, stepped.local_steps, stepped.num_examples) == ("update", 5, 10)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"local_steps": 2}, 'a gradient is of one step.*kind="update"'),
        ({"kind": "update"}, "expects a learning_rate"),
        ({"kind": "update", "learning_rate": 0.1, "local_steps": 4}, "6 images do not divide into 4"),
        ({"defenses": ["secure_aggregation"]}, "adds up the replies of many clients"),
        ({"disclose": ["secret"]}, "disclose"),
        ({"images": torch.rand(6, *SHAPE) * 2 - 1}, r"expected pixels in \[0, 1\].*Normalize"),
        (
            {"images": torch.zeros(6, *SHAPE, dtype=torch.uint8)},
            r"expected pixels in \[0, 1\], got torch.uint8",
        ),
        ({"images": torch.rand(0, *SHAPE)}, "expected at least one"),
        ({"images": torch.rand(6, 64)}, r"expected \(channels, height, width\)"),
        ({"images": torch.rand(6, 3, 8, 8)}, "does not take images of shape"),
        ({"labels": torch.full((6,), 4)}, "labels: expected 6 int64 from 0 to 3"),
        ({"labels": torch.zeros(6)}, "got torch.float32"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, "labels: expected 6"),
    ],
)
def test_what_no_client_could_do_is_refused(how: dict[str, object], words: str) -> None:
    images, labels = batch(6)
    with pytest.raises(FedsimError, match=words):
        fedsim.observe(network(), **({"images": images, "labels": labels} | how))


def test_gradients_of_another_model_are_refused() -> None:
    model, (images, labels) = network(), batch(2)
    with pytest.raises(FedsimError, match="one for each of the model's 4 parameters, got 3"):
        fedsim.observation(model, gradient(model, images, labels)[:3])
    seen = fedsim.observe(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), images, labels)
    with pytest.raises(FedsimError, match="the model does not fit what was sent"):
        fedsim.attack("ilrg")(model, seen, input_shape=SHAPE)
    with pytest.raises(FedsimError, match="expected an observation"):
        fedsim.attack("ilrg")(model, input_shape=SHAPE)
    unused = fedsim.observation(model, [None, *gradient(model, images, labels)[1:]])
    assert not unused.received["1.weight"].any()


def test_an_attack_is_called_on_the_weights_that_were_sent_whatever_the_model_holds_now() -> None:
    model, (images, labels) = network(), batch(3)
    seen = fedsim.observe(model, images, labels)
    with torch.no_grad():
        model[1].weight.zero_()
    guess = fedsim.attack("peeling")(model, seen, input_shape=SHAPE)
    assert fedsim.score(guess, images, labels)["psnr"].value > 80
    assert not model[1].weight.any()


@pytest.mark.parametrize(("name", "size"), [("peeling", 3), ("span_matching", 3), ("stein", 3), ("rgap", 1)])
def test_a_model_that_normalises_otherwise_is_named_as_such(name: str, size: int) -> None:
    own = nn.Sequential(Standardise(), network())
    images, labels = batch(size)
    seen, attack = fedsim.observe(own, images, labels), fedsim.attack(name)
    words = r"got mean=\(0\.3,\), std=\(0\.25,\)\. Remedy: Task\(\.\.\., mean=\(0\.3,\), std=\(0\.25,\)\)"
    with pytest.raises(FedsimError, match=words):
        attack(own, seen, input_shape=SHAPE)
    if name != "stein":  # which must send weights of its own
        guess = attack(own, seen, input_shape=SHAPE, mean=(0.3,), std=(0.25,))
        assert fedsim.score(guess, images, labels)["psnr"].value > 40


def test_scores_stand_beside_their_baselines_in_text_and_in_a_notebook() -> None:
    model, (images, labels) = network(), batch(3)
    seen = fedsim.observe(model, images, labels)
    guess = fedsim.attack("peeling")(model, seen, input_shape=SHAPE)
    found = fedsim.score(guess, images, labels)
    images_only = ["psnr", "ssim", "lpips", "image_error"]
    assert [score.metric for score in found] == ["leacc", "lnacc", "irec", *images_only]
    assert not found.unscored
    heading, *rows = str(found).splitlines()
    assert heading.split() == ["metric", "value", "baseline"]
    assert rows[0].split()[:2] == ["leacc", "1.000"]
    assert "<td>psnr</td>" in found._repr_html_()
    truth = fedsim.Truth(round=1, client=0, images=images, labels=labels)
    assert fedsim.score(guess, truth)["irec"] == found["irec"]
    some = fedsim.score(guess, images, labels, metrics=["psnr", Broken()])
    assert ([score.metric for score in some], some.unscored) == (["psnr"], {"Broken": "ValueError: no idea"})
    assert str(some).endswith("Broken: not scored: ValueError: no idea")
    with pytest.raises(FedsimError, match=r"got 'pnsr'\. Did you mean psnr"):
        found["pnsr"]
    with pytest.raises(FedsimError, match="expected labels"):
        fedsim.score(guess, images)
    assert str(fedsim.score(fedsim.Reconstruction(), images, labels)) == "nothing was claimed"


def test_claims_about_features_are_scored_with_the_model_and_not_forgotten_without() -> None:
    model, (images, labels) = network(), batch(4)
    seen = fedsim.observe(model, images, labels)
    guess = fedsim.attack("ilrg")(model, seen, input_shape=SHAPE)
    without = fedsim.score(guess, images, labels)
    assert set(without.unscored) == {"embeddings", "probabilities"}
    assert "embeddings: not scored" in str(without)
    whole = fedsim.score(guess, images, labels, model=model, observation=seen)
    assert not whole.unscored
    assert 0 < whole["embedding_cosine"].value <= 1.001
    with pytest.raises(FedsimError, match="does not fit what was sent"):
        fedsim.score(guess, images, labels, model=nn.Linear(64, 4), observation=seen)


def test_pictures_show_themselves() -> None:
    images, _ = batch(3)
    for picture in (fedsim.show(images), fedsim.show(images.flip(0), images)):
        assert picture._repr_png_().startswith(b"\x89PNG")
        assert picture._repr_html_().count("<img") == 1
    assert "200.0 dB" in [
        axes.get_xlabel() for axes in fedsim.show(images.flip(0), images).figure.axes
    ]  # each under the image that it is nearest to


def test_a_run_is_played_and_loaded(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    more = {"metric": ["leacc", "psnr", "image_error"], "attack.seconds": 5}
    run = fedsim.run(
        "model=mlp",
        attack="peeling",
        clients=2,
        rounds=1,
        batch_size=2,
        folder=tmp_path / "run",
        **SMALL,
        **more,
    )
    assert torch.get_num_threads() == 2
    loaded = fedsim.load(str(tmp_path / "run"))
    assert loaded.summary == run.summary
    assert run.summary["status"] == "complete"
    assert list(loaded.scores.columns) == [
        "round",
        "client",
        "attack",
        "metric",
        "value",
        "baseline",
        "error",
    ]
    assert set(loaded.scores.metric) == {"leacc", "psnr", "image_error", "bytes"}
    assert loaded.history["round"].tolist() == [0, 1]
    assert len(loaded.pictures()) == 5  # images and labels of two clients, and the counts of all
    shown = loaded._repr_html_()
    assert shown.count("<img") == 5
    assert "<td>psnr</td>" in shown
    assert str(loaded).splitlines()[0].startswith("peeling_mlp_synthetic: complete")
    assert list(fedsim.load_all(tmp_path).runs) == ["run"]
    assert set(fedsim.load_all(tmp_path).means.columns) >= {"psnr", "accuracy"}
    with pytest.raises(FedsimError, match="several runs"):
        fedsim.load(tmp_path)
    for load in (fedsim.load, fedsim.load_all):
        with pytest.raises(FedsimError, match=r"config\.yaml.*Remedy"):
            load(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["ilrg", "peeling"])
def test_every_score_has_a_baseline_from_python_too(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    images, labels = torch.rand(4, 1, 28, 28), torch.tensor([3, 1, 4, 1])
    seen = fedsim.observe(model, images, labels)
    guess = fedsim.attack(name)(model, seen, input_shape=(1, 28, 28))
    found = fedsim.score(guess, images, labels, model=model, observation=seen)
    assert len(found) >= 4
    assert all(score.baseline is not None for score in found)


def test_public_images_make_a_harder_baseline_and_must_fit() -> None:
    images, labels = torch.full((3, 1, 8, 8), 0.1), torch.tensor([0, 1, 2])
    guess = fedsim.Reconstruction(images=images)
    grey = fedsim.score(guess, images, labels, metrics=["psnr"])["psnr"]
    public = fedsim.score(guess, images, labels, metrics=["psnr"], public=images + 0.01)["psnr"]
    assert public.baseline > grey.baseline + 20
    with pytest.raises(FedsimError, match=r"public: expected images \(N, 1, 8, 8\).* got \(3, 1, 9, 9\)"):
        fedsim.score(guess, images, labels, public=torch.zeros(3, 1, 9, 9))
    with pytest.raises(FedsimError, match="at least one private image"):
        fedsim.score(guess, images[:0], labels[:0])
