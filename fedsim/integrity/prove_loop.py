"""A proof of a training that is the user's own loop: prove(train, into="mine", keys="keys")."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsim.core import progress
from fedsim.core.errors import FedsimError
from fedsim.core.randomness import undisturbed
from fedsim.core.training import MODEL, Trace, tensors_digest
from fedsim.defenses.integrity.proof.proof import proof_of, to_bytes
from fedsim.defenses.integrity.proof.seal import seal
from fedsim.integrity.keys import nonce_of, prover_keys
from fedsim.integrity.prove import PROOF_FILE, WEIGHTS_FILE
from fedsim.integrity.recorder import Plan, Recorder, begin
from fedsim.integrity.states import Stateful, padded, state_of, tensors_in
from fedsim.storage.files import write_whole
from fedsim.storage.tensors import tensor_bytes

Loop = Callable[[Recorder], object]


def prove(train: Loop, *, into: str | Path, keys: str | Path | None = None, seed: int = 0) -> Path:
    """Run a training loop, and leave the proof of it and the model's state in a folder; return the proof.

    train: takes its batches from the recorder that it is called with; what it draws before that follows from
    the nonce.
    keys: a folder of `fedsim keys`; None: keys of the seed, which protect nothing.
    """
    folder = Path(into)
    if taken := [name for name in (PROOF_FILE, WEIGHTS_FILE) if (folder / name).exists()]:
        raise FedsimError(f"{folder / taken[0]} is there already. Remedy: another folder.")
    sealed, trace = sealed_loop(train, LoopRecorder, None if keys is None else Path(keys), seed)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / PROOF_FILE, sealed)
    write_whole(folder / WEIGHTS_FILE, tensor_bytes(model_in(trace.checkpoints[-1])))
    return folder / PROOF_FILE


def sealed_loop(
    train: Loop, kind: "type[LoopRecorder]", keys: Path | None, seed: int, machine: str | None = None
) -> tuple[bytes, Trace]:
    """Run a loop with a recorder; return the sealed proof of it, and what it says.

    machine: what it says that it was computed on; None: what it was.
    """
    signer, reader = prover_keys(keys, seed)
    nonce = nonce_of(keys, seed)
    recorder = kind(secret_of(signer.public_key().public_bytes_raw(), nonce))
    with undisturbed():
        begin(recorder.secret)
        train(recorder)
    if recorder.trace is None:
        raise FedsimError(
            "the loop left before its last step, or never asked its recorder for batches. "
            "Remedy: record(loader, model, optimizer, steps=N, every=K), with as many steps as are taken."
        )
    subject = f"{len(recorder.trace.digests)} steps of {getattr(train, '__module__', '')}.{_name(train)}"
    proof = replace(
        proof_of(recorder.trace, subject=subject, initial="random"), data=recorder.root, nonce=nonce.hex()
    )
    proof = proof if machine is None else replace(proof, machine=machine)
    return seal(to_bytes(proof), signer, reader), recorder.trace


def secret_of(prover: bytes, nonce: bytes) -> bytes:
    """Return what a loop's chance follows from: other provers, and other trainings, draw otherwise."""
    return prover + nonce


def model_in(state: dict[str, Tensor] | Any) -> dict[str, Tensor]:
    """Return the model's part of a loop's state, by the model's own names."""
    return {name.removeprefix(MODEL): one for name, one in state.items() if name.startswith(MODEL)}


class LoopRecorder(Recorder):
    """Keeps the state every k steps, and which batch led to the next."""

    trace: Trace | None = None  # None: the loop has not come to its end
    root: str = ""

    @property
    def secret(self) -> bytes:
        """What the prover's key and the verifier's nonce are."""
        return self._secret

    def batches(self, plan: Plan, parts: Sequence[Stateful]) -> Iterator[Any]:
        """Hand out every batch once."""
        found, digests, indices = [state_of(parts)], list[Future[str]](), list[tuple[int, ...]]()
        self.root = plan.data.root
        with (
            ThreadPoolExecutor(1) as beside,  # a batch is digested while the next step is computed
            progress.bar("steps", plan.steps) as advance,
        ):
            for step in range(plan.steps):
                indices.append(plan.indices(step))
                batch = plan.batch(indices[-1])
                digests.append(beside.submit(tensors_digest, tensors_in(batch)))
                self.hand_out(plan, step)
                yield batch
                if (step + 1) % plan.every == 0 or step + 1 == plan.steps:
                    found.append(state_of(parts))
                advance(step + 1)
        everything = {name: tensor for tensors, _ in found for name, tensor in tensors.items()}
        self.trace = Trace(
            # An optimizer's own tensors come with its first step.
            checkpoints=tuple(padded(tensors, everything) for tensors, _ in found),
            every=plan.every,
            learning_rate=0.0,
            indices=tuple(indices),
            digests=tuple(digest.result() for digest in digests),
            settings=tuple(text for _, text in found),
        )


def _name(train: Loop) -> str:
    return str(getattr(train, "__name__", type(train).__name__))
