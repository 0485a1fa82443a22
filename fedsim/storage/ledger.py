"""An append-only list of proofs: every line names the digest of the line before.

None can be changed or dropped without breaking the chain. Who keeps the last line's digest (the head) can
later tell whether the list was rewritten.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fedsim.core.errors import FedsimError
from fedsim.storage.folder import Storage

LEDGER = "proofs/ledger.jsonl"  # in a run folder, with the proofs beside it
FIRST = "0" * 64


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One sealed proof, in the order of arrival."""

    number: int
    round: int
    client: int
    proof: str  # SHA-256 of the sealed bytes
    previous: str  # SHA-256 of the line before

    def line(self) -> bytes:
        """Return the entry as it stands in the file."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode() + b"\n"


def append(storage: Storage, name: str, sealed: bytes, *, round: int, client: int) -> Entry:
    """Add a proof."""
    last = storage.last_append(name)
    previous = hashlib.sha256(last).hexdigest() if last else FIRST
    number = json.loads(last)["number"] + 1 if last else 0
    proof = hashlib.sha256(sealed).hexdigest()
    entry = Entry(number=number, round=round, client=client, proof=proof, previous=previous)
    storage.append(name, entry.line())
    return entry


def read(path: Path) -> list[Entry]:
    """Read a ledger and check its chain."""
    previous, entries = FIRST, list[Entry]()
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True)):
        try:
            entry = Entry(**json.loads(line))
            whole = entry.line() == line
        except (ValueError, TypeError) as error:
            raise FedsimError(f"{path}, line {number + 1}: not a ledger entry ({error})") from error
        if not whole or entry.number != number or entry.previous != previous:
            raise FedsimError(
                f"{path}, line {number + 1}: the chain is broken: a line was changed or removed"
            )
        previous = hashlib.sha256(line).hexdigest()
        entries.append(entry)
    return entries


def keep_proof(storage: Storage, sealed: bytes, *, round: int, client: int) -> None:
    """Enter a proof in the ledger of a run folder, and put it beside."""
    append(storage, LEDGER, sealed, round=round, client=client)
    storage.write(_proof_file(round, client), sealed)


def check_run(run: Path) -> tuple[int, str | None]:
    """Return how many proofs a run was sent, and what was changed since: in the chain or of the proofs."""
    if not (run / LEDGER).is_file():
        raise FedsimError(f"no such file: {run / LEDGER}. Remedy: a run with an audit and audit.keep=true.")
    try:
        entries = read(run / LEDGER)
    except FedsimError as error:
        return 0, str(error)
    # A resumed run plays a round again: the last proof counts.
    for entry in {(entry.round, entry.client): entry for entry in entries}.values():
        path = run / _proof_file(entry.round, entry.client)
        if not path.is_file():
            return len(entries), f"{path} is in the ledger and not in the folder"
        if hashlib.sha256(path.read_bytes()).hexdigest() != entry.proof:
            return len(entries), f"{path} is not the proof that came in"
    return len(entries), None


def _proof_file(round: int, client: int) -> str:
    return f"proofs/round_{round}.client_{client}.proof"
