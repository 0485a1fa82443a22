"""A training outside of a federation, with a sealed proof of learning in its run folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsim.defenses.integrity.proof.proof import proof_of, to_bytes
from fedsim.defenses.integrity.proof.seal import seal
from fedsim.integrity.binding import bound, commitment_to
from fedsim.integrity.keys import nonce_of, prover_keys
from fedsim.integrity.training import CentralTraining, train_centrally
from fedsim.lab.record import recorded
from fedsim.storage.runfolder import RunFolder

PROOF_FILE = "training.proof"
WEIGHTS_FILE = "model.safetensors"  # what was trained


def prove(training: CentralTraining, every: int, folder: RunFolder, *, name: str, config_text: str) -> Path:
    """Train from a random initialisation, and leave the proof of it in a run folder; return its file."""
    signer, reader = prover_keys(training.keys, training.seed)  # complain of them before any work
    folder.begin("proof", config_text)
    with recorded(folder, name, lambda: _summary(training, every, folder)):
        data, nonce = commitment_to(training.train), nonce_of(training.keys, training.seed)
        own = bound(training, signer.public_key().public_bytes_raw(), nonce, data.root)
        trace = train_centrally(own, every)
        if training.precision == "float16":
            halved = [{n: t.half().float() for n, t in weights.items()} for weights in trace.checkpoints]
            trace = replace(trace, checkpoints=tuple(halved))
        subject = f"{training.steps} steps on batches of {training.batch_size}"
        proof = replace(
            proof_of(trace, subject=subject, initial="random"),
            precision=training.precision,
            data=data.root,
            nonce=nonce.hex(),
        )
        folder.storage.write(PROOF_FILE, seal(to_bytes(proof), signer, reader))
        folder.storage.write_tensors(WEIGHTS_FILE, trace.checkpoints[-1])
    return folder.path / PROOF_FILE


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
