"""Random edits of an audited run: does `fedsim verify RUN` find them all? A part of proof_bars.py."""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.lab.experiment import run
from fedsim.storage.ledger import check_run


def ledger(seed: int, challenges: int) -> None:
    """Random edits of the proofs, verdicts and ledger of a run folder."""
    small = [
        "data=synthetic",
        "data.shape=[1,8,8]",
        "data.num_classes=4",
        "data.train_size=160",
        "model=softmax",
    ]
    rules = ["federation=fedavg", "federation.rounds=3", "audit=proof_of_learning", "attack=none", "name=b"]
    with tempfile.TemporaryDirectory() as name:
        folder = run(
            build.experiment(compose([*small, *rules, "federation.batch_size=6"])), Path(name) / "run"
        )
        clean = check_run(folder.path)
        assert clean[1] is None, clean
        head = folder.path / "proofs" / "head.json"
        files = {
            p: p.read_bytes() for p in (*(folder.path / "proofs").iterdir(), folder.path / "verdicts.csv")
        }
        found, chance = 0, random.Random(seed)
        edits = list(edited(files, chance, 10 * challenges, head))
        for changed in edits:
            for path, content in changed.items():
                path.unlink() if content is None else path.write_bytes(content)
            found += check_run(folder.path)[1] is not None
            for path in changed:
                path.write_bytes(files[path]) if path in files else path.unlink()
        assert check_run(folder.path) == clean
    print(f"\nedits of a run folder's proofs, verdicts and ledger: {found} of {len(edits)} found")


def edited(files: dict[Path, bytes], chance: random.Random, number: int, head: Path) -> Iterator[dict]:
    """Yield changes of files: bits, lines, whole files, new files, a chain that is built anew."""
    lists = [path for path in files if path.suffix in (".jsonl", ".csv")]
    while number:
        kind = chance.choice(("bit", "cut", "line", "swap", "remove", "add", "empty", "grow"))
        path = chance.choice(lists if kind in ("line", "swap") else list(files))
        content = bytearray(files[path])
        if kind == "bit":
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        elif kind == "cut":
            content = content[: chance.randrange(len(content))]
        elif kind == "grow":
            content += chance.randbytes(chance.randrange(1, 9))
        elif kind in ("line", "swap"):
            lines = bytes(content).splitlines(keepends=True)
            one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
            if kind == "swap":
                lines[one], lines[other] = lines[other], lines[one]
            else:
                del lines[one]
            content = bytearray(b"".join(lines))
        elif kind == "empty":
            content = bytearray()
        changed = {path: None if kind == "remove" else bytes(content)}
        if kind == "add":
            changed = (
                {path.parent / "proofs" / "round_9.client_9.proof": b"x"} if path.suffix == ".csv" else {}
            )
        if changed and changed.get(path, b"new") != files.get(path):
            number -= 1
            yield changed
