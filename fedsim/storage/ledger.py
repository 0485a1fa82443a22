"""An append-only list of what an audit was sent and found: every line names the digest of the line before.

None can be changed or dropped without breaking the chain. The last line's digest (the head) is signed when
the run ends: who knows the key, or keeps the head, can tell whether the list was rewritten or cut.
"""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from fedsim.core.errors import FedsimError
from fedsim.core.training import Commitment
from fedsim.core.types import Verdict
from fedsim.storage.files import as_bytes, csv_text
from fedsim.storage.folder import Storage
from fedsim.storage.tables import append_row, line_of

FOLDER = "proofs"
LEDGER = f"{FOLDER}/ledger.jsonl"  # in a run folder, with the proofs beside it
HEAD = f"{FOLDER}/head.json"
VERDICTS = "verdicts.csv"
FIRST = "0" * 64
Kind = Literal["data", "proof", "verdict"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One thing that came in or was found, in that order."""

    number: int
    kind: Kind
    round: int
    client: int
    digest: str  # the root of a client's data; SHA-256 of a sealed proof, or of a verdict's line
    size: int  # examples of data, bytes of a proof or line
    previous: str  # SHA-256 of the line before

    def line(self) -> bytes:
        """Return the entry as it stands in the file."""
        return _canonical(asdict(self))


def append(
    storage: Storage, name: str, kind: Kind, digest: str, size: int, *, round: int, client: int
) -> Entry:
    """Add an entry."""
    last = storage.last_append(name)
    previous = hashlib.sha256(last).hexdigest() if last else FIRST
    number = json.loads(last)["number"] + 1 if last else 0
    entry = Entry(
        number=number, kind=kind, round=round, client=client, digest=digest, size=size, previous=previous
    )
    storage.append(name, entry.line())
    return entry


def read(path: Path) -> list[Entry]:
    """Read a ledger and check its chain."""
    previous, entries = FIRST, list[Entry]()
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True)):
        try:
            entry = Entry(**json.loads(line))
            whole = entry.line() == line
        except (ValueError, TypeError, RecursionError) as error:
            raise FedsimError(f"{path}, line {number + 1}: not a ledger entry ({error})") from error
        if not whole or entry.number != number or entry.previous != previous:
            raise FedsimError(
                f"{path}, line {number + 1}: the chain is broken: a line was changed or removed"
            )
        previous = hashlib.sha256(line).hexdigest()
        entries.append(entry)
    return entries


def keep_commitment(storage: Storage, commitment: Commitment, *, round: int, client: int) -> None:
    """Enter what a client commits to in the ledger of a run folder."""
    append(storage, LEDGER, "data", commitment.root, commitment.examples, round=round, client=client)


def commitments(storage: Storage) -> dict[int, Commitment]:
    """Return what clients have committed to, by their first word."""
    if not storage.has(LEDGER):
        return {}
    found = dict[int, Commitment]()
    for entry in read(storage.root / LEDGER):
        if entry.kind == "data":
            found.setdefault(entry.client, Commitment(root=entry.digest, examples=entry.size))
    return found


def keep_proof(storage: Storage, sealed: bytes, *, round: int, client: int) -> None:
    """Enter a proof in the ledger of a run folder, and put it beside."""
    digest = hashlib.sha256(sealed).hexdigest()
    append(storage, LEDGER, "proof", digest, len(sealed), round=round, client=client)
    storage.write(proof_file(round, client), sealed)


def keep_verdict(storage: Storage, verdict: Verdict) -> None:
    """Add a verdict to its table, and to the ledger if there is one."""
    if storage.has(LEDGER):
        line = as_bytes(line_of(verdict))
        digest = hashlib.sha256(line).hexdigest()
        append(storage, LEDGER, "verdict", digest, len(line), round=verdict.round, client=verdict.client)
    append_row(storage, VERDICTS, verdict)


def sign_head(storage: Storage, key: str, sign: Callable[[bytes], bytes]) -> str | None:
    """Sign the head of a run's ledger when the run has ended, and return it; None: there is no ledger."""
    if not storage.has(LEDGER):
        return None
    last = storage.last_append(LEDGER)
    number, head = json.loads(last)["number"] + 1, hashlib.sha256(last).hexdigest()
    signature = sign(signed_words(number, head)).hex()
    storage.write(HEAD, _canonical({"entries": number, "head": head, "key": key, "signature": signature}))
    return head


def signed_words(number: int, head: str) -> bytes:
    """Return what a head's signature is over."""
    return f"fedsim ledger {number} {head}".encode()


class Checked(NamedTuple):
    """What a run's ledger says, and what is not as it says."""

    proofs: int  # that the run was sent
    problem: str | None  # what was changed since: in chain, head, proofs or verdicts
    head: str  # of the ledger as it is
    signed_by: str = ""  # whose key the head was compared with, in words


def check_run(run: Path, head: str | None = None, key: str | None = None) -> Checked:
    """Compare the proofs and verdicts of a run with its ledger, and this with its signed head.

    head: that was printed when the run ended; key: the verifier's public one, in hex (None: the head's own).
    """
    if (run / FOLDER).is_dir() and not (run / LEDGER).is_file():
        return Checked(0, f"{run / LEDGER} is not there: it was removed", FIRST)
    if not (run / LEDGER).is_file():
        raise FedsimError(f"no such file: {run / LEDGER}. Remedy: a run with an audit and audit.keep=true.")
    try:
        entries = read(run / LEDGER)
    except FedsimError as error:
        return Checked(0, str(error), FIRST)
    proofs = sum(entry.kind == "proof" for entry in entries)
    found = hashlib.sha256(entries[-1].line()).hexdigest() if entries else FIRST
    problem = (
        _head_problem(run, entries, found, head, key)
        or _proofs_problem(run, entries)
        or _verdicts_problem(run, entries)
    )
    return Checked(proofs, problem, found)


def _head_problem(
    run: Path, entries: Sequence[Entry], found: str, head: str | None, key: str | None
) -> str | None:
    if head is not None and head != found:
        return f"the ledger ends at {found}, and not at the head {head} that was named"
    if not (run / HEAD).is_file():
        return f"{run / HEAD}: no signed head: the run did not end, or it was removed"
    try:
        content = (run / HEAD).read_bytes()
        told = json.loads(content)
        if content != _canonical(told) or told.keys() != {"entries", "head", "key", "signature"}:
            return f"{run / HEAD} was changed"
        if key is not None and told["key"] != key:
            return f"{run / HEAD} is signed by another key than the verifier's"
        if not _fits(told["key"], told["signature"], signed_words(told["entries"], told["head"])):
            return f"{run / HEAD}: the signature does not fit"
    except (ValueError, TypeError, AttributeError, RecursionError):
        return f"{run / HEAD} was changed"
    if (told["entries"], told["head"]) != (len(entries), found):
        return f"the ledger has {len(entries)} lines, and not the {told['entries']} of its signed head"
    return None


def _proofs_problem(run: Path, entries: Sequence[Entry]) -> str | None:
    # A resumed run plays a round again: the last proof counts.
    kept = {proof_file(entry.round, entry.client): entry for entry in entries if entry.kind == "proof"}
    for name, entry in kept.items():
        if not (run / name).is_file():
            return f"{run / name} is in the ledger and not in the folder"
        if hashlib.sha256((run / name).read_bytes()).hexdigest() != entry.digest:
            return f"{run / name} is not the proof that came in"
    known = {run / name for name in (*kept, LEDGER, HEAD)}
    foreign = sorted(str(path) for path in (run / FOLDER).iterdir() if path not in known)
    return f"{foreign[0]} is in the folder and not in the ledger" if foreign else None


def _verdicts_problem(run: Path, entries: Sequence[Entry]) -> str | None:
    kept = {(entry.round, entry.client): entry for entry in entries if entry.kind == "verdict"}
    wanted = [entry.digest for entry in sorted(kept.values(), key=lambda entry: entry.number)]
    path = run / VERDICTS
    content = path.read_bytes() if path.is_file() else b""
    try:
        rows = list(csv.reader(io.StringIO(content.decode(), newline=""), strict=True))
    except (ValueError, csv.Error):
        return f"{path} was changed: it is no table"
    lines = [as_bytes(csv_text([row])) for row in rows]
    heading = as_bytes(csv_text([list(Verdict.__dataclass_fields__)]))
    if lines and (b"".join(lines) != content or lines[0] != heading):
        return f"{path} was changed"
    found = [hashlib.sha256(line).hexdigest() for line in lines[1:]]
    if found != wanted:
        return f"{path} is not what was found: {len(found)} verdicts, {len(wanted)} in the ledger"
    return None


def _fits(key: str, signature: str, words: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), words)
    except InvalidSignature:
        return False
    return True


def _canonical(content: dict[str, object]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def proof_file(round: int, client: int) -> str:
    """Return where in a run folder a client's proof of a round is."""
    return f"{FOLDER}/round_{round}.client_{client}.proof"
