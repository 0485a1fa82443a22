"""A training outside of a federation, with a sealed proof of learning in its run folder."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedsim.core.errors import FedsimError
from fedsim.core.training import weights_of
from fedsim.core.types import form_problem
from fedsim.defenses.integrity.proof.calibration import Calibration, read_calibrations, shape_of
from fedsim.defenses.integrity.proof.proof import proof_of, to_bytes
from fedsim.defenses.integrity.proof.seal import seal
from fedsim.integrity.binding import bound, commitment_to
from fedsim.integrity.keys import nonce_of, prover_keys
from fedsim.integrity.models import read_model
from fedsim.integrity.training import CentralTraining, train_centrally
from fedsim.lab.record import recorded
from fedsim.storage.runfolder import RunFolder

PROOF_FILE = "training.proof"
WEIGHTS_FILE = "model.safetensors"  # what was trained


def prove(
    training: CentralTraining,
    every: int,
    folder: RunFolder,
    *,
    name: str,
    config_text: str,
    kind: str = "l2",
) -> Path:
    """Train, and leave the proof of it and the weights in a run folder; return the proof's file.

    kind: of the distance, where a calibration is to be carried.
    """
    signer, reader = prover_keys(training.keys, training.seed)  # complain of them before any work
    parent = None if training.parent is None else read_model(training.parent)
    if parent is not None and (problem := form_problem(parent, weights_of(training.fresh(0)))):
        raise FedsimError(f"proof.parent: a model of another form: {problem}")
    measured = calibration_for(training, every, kind)
    folder.begin("proof", config_text)
    with recorded(folder, name, lambda: _summary(training, every, folder)):
        data, nonce = commitment_to(training.train), nonce_of(training.keys, training.seed)
        own = bound(training, signer.public_key().public_bytes_raw(), nonce, data.root)
        trace = train_centrally(own, every, parent=parent)
        if training.precision == "float16":
            halved = [{n: t.half().float() for n, t in weights.items()} for weights in trace.checkpoints]
            trace = replace(trace, checkpoints=tuple(halved))
        subject = f"{training.steps} steps on batches of {training.batch_size}"
        proof = replace(
            proof_of(trace, subject=subject, initial="random" if parent is None else "parent"),
            precision=training.precision,
            calibration={} if measured is None else asdict(measured),
            data=data.root,
            nonce=nonce.hex(),
        )
        folder.storage.write(PROOF_FILE, seal(to_bytes(proof), signer, reader))
        folder.storage.write_tensors(WEIGHTS_FILE, trace.checkpoints[-1])
    return folder.path / PROOF_FILE


def calibration_for(training: CentralTraining, every: int, kind: str) -> Calibration | None:
    """Return the calibration that fits a training, of the file that it names; None: it names none."""
    if training.calibration is None:
        return None
    found, shape = read_calibrations(training.calibration), shape_of(weights_of(training.fresh(0)))
    size = min(training.batch_size, len(training.train.labels))
    for one in found:
        asked = (kind, every, training.learning_rate, size, shape)
        if (one.distance, one.every, one.learning_rate, one.batch_size, one.model) == asked:
            return one
    raise FedsimError(
        f"proof.calibration: none of {len(found)} was measured for {kind}, k={every}, learning rate "
        f"{training.learning_rate:g}, batches of {size} and this model. "
        f"Remedy: fedsim calibrate with these settings and proof.intervals=[{every}]."
    )


def _summary(training: CentralTraining, every: int, folder: RunFolder) -> dict[str, Any]:
    """Return what there is to know of a proof without its keys."""
    path = folder.path / PROOF_FILE
    return {
        "metrics": {},
        "steps": training.steps,
        "batch_size": training.batch_size,
        "learning_rate": training.learning_rate,
        "every": every,
        "precision": training.precision,
        "seed": training.seed,
        "own_keys": training.keys is not None,
        "bytes": path.stat().st_size if path.is_file() else 0,
    }
