"""Proofs of a user's own loop: whatever it changes is recorded, and run again where a challenge names it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fedsim.core.errors import FedsimError
from fedsim.core.randomness import generator
from fedsim.core.types import Verdict
from fedsim.defenses.integrity.proof.expected import Thoroughness
from fedsim.defenses.integrity.proof.proof import Proof, from_bytes, to_bytes
from fedsim.defenses.integrity.proof.seal import seal, unseal
from fedsim.integrity.keys import prover_keys, verifier_keys
from fedsim.integrity.models import read_model
from fedsim.integrity.prove_loop import prove
from fedsim.integrity.recorder import Recorder
from fedsim.integrity.shares import Share, merged
from fedsim.integrity.verify_loop import verify_loop

IMAGES = torch.rand(26, 1, 4, 4, generator=generator(0, "images"))
LABELS = torch.randint(0, 3, (26,), generator=generator(0, "labels"))
Schedule = Callable[[torch.optim.Optimizer], object]
OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=1e-3),
    "adam": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
}
SCHEDULES: dict[str, Schedule] = {
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 12),
    "milestones": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [4, 8]),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=13),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=1),
}


def loop(
    optimizer: str = "momentum",
    schedule: str = "cosine",
    *,
    rate: float | None = None,
    images: torch.Tensor = IMAGES,
    after: Callable[[], object] = lambda: None,
) -> Callable[[Recorder], None]:
    def train(record: Recorder) -> None:
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3)
        )
        optimize = OPTIMIZERS[optimizer](model.parameters())
        if rate is not None:
            optimize.param_groups[0]["lr"] = rate
        paced = SCHEDULES[schedule](optimize)
        loader = DataLoader(TensorDataset(images, LABELS), batch_size=5)
        for batch, labels in record(loader, model, optimize, paced, steps=12, every=3):
            noisy = batch + 0.1 * torch.randn_like(batch)  # augmentation
            optimize.zero_grad()
            loss = cross_entropy(model(noisy), labels)
            loss.backward()
            optimize.step()
            paced.step(loss.item()) if schedule == "plateau" else paced.step()
        after()

    return train


def judged(path: Path, train: Callable, model: Path | None = None, **how: object) -> Verdict:
    weights = None if model is None else read_model(model)
    return verify_loop(path.read_bytes(), train, Thoroughness(**how), generator(1), model=weights)


@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [("momentum", "cosine"), ("adam", "milestones"), ("adam", "one cycle"), ("momentum", "plateau")],
)
def test_whatever_a_loop_changes_is_done_again_bit_for_bit(
    optimizer: str, schedule: str, tmp_path: Path
) -> None:
    path = prove(loop(optimizer, schedule), into=tmp_path / "mine")
    verdict = judged(path, loop(optimizer, schedule), path.parent / "model.safetensors")
    assert (verdict.accepted, verdict.distance, verdict.recomputed) == (True, 0, 12), verdict.reason
    assert (verdict.unseen, verdict.unpinned) == (0, "")


def test_verifiers_share_the_intervals_and_any_of_them_finds_the_lie(honest: Path, tmp_path: Path) -> None:
    lie = changed(honest, moved_weight, tmp_path / "lie")
    for path, checks in ((honest, {""}), (lie, {"", "step"})):
        shares = [judged(path, loop(), share=(number, 3)) for number in range(3)]
        assert {verdict.check for verdict in shares} == checks
        together = merged([Share(share, []) for share in shares])
        assert (together.accepted, together.check) == (path is honest, max(checks))
        if path is honest:
            assert together.recomputed == 12
            assert [verdict.recomputed for verdict in shares] == [6, 3, 3]  # four intervals of three steps


def test_global_chance_and_what_follows_the_loop_are_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    runs = list[int]()
    path = prove(loop(after=lambda: runs.append(1)), into=tmp_path / "mine")
    assert judged(path, loop(after=lambda: runs.append(2))).accepted
    assert (runs, torch.rand(1)) == ([1], expected)  # a verifier writes none of a loop's files


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prove(loop(), into=tmp_path_factory.mktemp("honest"))


def changed(path: Path, change: Callable[[Proof], Proof], into: Path) -> Path:
    """Let the prover sign another proof."""
    proof = change(from_bytes(unseal(path.read_bytes(), *verifier_keys(None, 0)).payload))
    into.write_bytes(seal(to_bytes(proof), *prover_keys(None, 0)))
    return into


def moved_weight(proof: Proof) -> Proof:
    found = [dict(checkpoint) for checkpoint in proof.trace.checkpoints]
    found[2]["0.5.bias"] = found[2]["0.5.bias"] + 0.01
    return replace(proof, trace=replace(proof.trace, checkpoints=found))


def moved_momentum(proof: Proof) -> Proof:
    name = "1.state.0.momentum_buffer"
    found = [dict(checkpoint) for checkpoint in proof.trace.checkpoints]
    found[2][name] = found[2][name] * 1.01
    return replace(proof, trace=replace(proof.trace, checkpoints=found))


def moved_count(proof: Proof) -> Proof:
    found = [dict(checkpoint) for checkpoint in proof.trace.checkpoints]
    found[-1]["0.1.num_batches_tracked"] = found[-1]["0.1.num_batches_tracked"] + 1
    return replace(proof, trace=replace(proof.trace, checkpoints=found))


def other_settings(place: int, text: Callable[[str], str]) -> Callable[[Proof], Proof]:
    def change(proof: Proof) -> Proof:
        settings = list(proof.trace.settings)
        settings[place] = text(settings[place])
        return replace(proof, trace=replace(proof.trace, settings=settings))

    return change


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (moved_weight, "step"),
        (moved_momentum, "step"),
        (moved_count, "step"),
        (other_settings(0, lambda text: text.replace("0.9", "0.8")), "settings"),
        (other_settings(2, lambda text: text.replace("0.9", "0.8")), "settings"),
        (other_settings(-1, lambda text: text.replace("0.9", "0.8")), "settings"),
        (other_settings(1, lambda text: json.dumps([1, 2, 3])), ("settings", "state")),
        (other_settings(1, lambda text: "[" * 10**5), ("settings", "state")),
        (other_settings(1, lambda text: text.replace("lr", "rate")), ("settings", "state")),
    ],
)
def test_a_state_that_the_loop_does_not_lead_to_is_refused(
    honest: Path, change: Callable[[Proof], Proof], check: str | tuple[str, str], tmp_path: Path
) -> None:
    verdict = judged(changed(honest, change, tmp_path / "lie"), loop())
    assert not verdict.accepted
    assert verdict.check in check, verdict.reason


def test_another_loop_other_data_another_nonce_another_model_are_told(honest: Path, tmp_path: Path) -> None:
    assert judged(honest, loop(rate=0.05)).check == "settings"
    assert judged(honest, loop("adam")).check in ("model", "settings")
    assert judged(honest, loop(images=IMAGES.flip(0))).check == "data"
    assert verify_loop(honest.read_bytes(), loop(), Thoroughness(), generator(1), seed=1).check == "signature"
    other = prove(loop(schedule="milestones"), into=tmp_path / "other").parent / "model.safetensors"
    assert judged(honest, loop(), other).check == "model"


def test_a_loop_that_cannot_be_recorded_is_told_why(honest: Path, tmp_path: Path) -> None:
    class Chance(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, place: int) -> torch.Tensor:
            return torch.rand(2)

    model = nn.Linear(2, 2)

    def augmented(record: Recorder) -> None:
        list(record(DataLoader(Chance(), batch_size=2), model, steps=1, every=1))

    def left(record: Recorder) -> None:
        for _ in record(DataLoader(TensorDataset(IMAGES, LABELS)), model, steps=3, every=1):
            break

    with pytest.raises(FedsimError, match="augment in the loop"):
        prove(augmented, into=tmp_path / "a")
    with pytest.raises(FedsimError, match="left before its last step"):
        prove(left, into=tmp_path / "b")
    with pytest.raises(FedsimError, match="parts that have a state_dict, got int"):
        prove(lambda record: record(DataLoader(TensorDataset(IMAGES)), 3, steps=1, every=1), into=tmp_path)
    with pytest.raises(FedsimError, match="is there already"):
        prove(loop(), into=honest.parent)
    with pytest.raises(FedsimError, match="never asked its recorder"):
        judged(honest, lambda record: None)
    with pytest.raises(FedsimError, match="fails before its first batch"):
        judged(honest, lambda record: 1 / 0)
