"""The run folder: the program's machine interface. Tensors as safetensors, tables as CSV and JSON.

config.yaml                     what was played: format and kind of the folder, and all settings
observations/round_1.sent.safetensors, round_1.client_0.safetensors
truth/, guesses/                the same names
history.csv, faults.csv         written while rounds are played
verdicts.csv, proofs/           of an audit; malicious.csv: which clients cheat, for the evaluator
scores.csv, summary.json        written when all is scored
inputs.json                     vocabulary or columns, where inputs are no images
model.safetensors               the final global model
log.txt, figures/, report.html
forgeries.csv, batches/         of a game; calibration.csv: of a calibration; training.proof: of a proof
manifest.txt, lock              checksums of all files (fedsim/storage/folder.py), and who is writing
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedsim.core.errors import FedsimError, printable, shortened
from fedsim.core.inputs import Inputs
from fedsim.core.training import Commitment
from fedsim.core.types import Fault, Observation, Reconstruction, RoundResult, Truth, Verdict, Weights
from fedsim.storage import exchanges, forms, ledger
from fedsim.storage.files import make_private, reading
from fedsim.storage.findings import FINDINGS
from fedsim.storage.folder import Storage
from fedsim.storage.games import MOVES
from fedsim.storage.heading import CONFIG_FILE, FORMAT, SUMMARY_FILE, read_config, read_summary
from fedsim.storage.scores import ScoreRow
from fedsim.storage.status import Standing, Status, standing_of
from fedsim.storage.tables import append_row, read_rows, write_rows

MODEL_FILE = "model.safetensors"
_SOURCE = re.compile(r"^source: (.*)$", re.MULTILINE)
PARTITION_FILE = "partition.safetensors"
# Grow while rounds are played.
TABLES: Mapping[str, type[Any]] = {"history.csv": RoundResult, "faults.csv": Fault, "verdicts.csv": Verdict}
GROWING = (*TABLES, MOVES, FINDINGS)  # line by line, in any kind of run


@dataclass(frozen=True, kw_only=True)
class MaliciousClient:
    """One line of malicious.csv."""

    client: int
    behaviour: str  # empty: honest


@dataclass(frozen=True)
class RunFolder:
    """Reads and writes one run's files."""

    path: Path

    @property
    def storage(self) -> Storage:
        """The folder's files, each as it was written."""
        return Storage(self.path)

    def keep_observation(self, observation: Observation, *, own_sent: bool = False) -> None:
        """Save an observation; what was broadcast is saved once a round, unless this client got its own."""
        exchanges.write_observation(self.storage, observation, own_sent=own_sent)

    def observation(self, round: int, client: int) -> Observation:
        """Read one saved observation."""
        return exchanges.read_observation(self.storage, round, client)

    def observations(self, round: int | None = None) -> Iterator[Observation]:
        """Read the saved observations one by one, by round and client, or those of one round."""
        for place in self.observed(round):
            yield self.observation(*place)

    def share_sizes(self) -> list[int]:
        """Return how many images each client owns; nothing in a replay, which trains nobody."""
        stored = self.storage.read_tensors(PARTITION_FILE)
        return [] if stored is None else [len(share) for share in stored[0].values()]

    def observed(self, round: int | None = None) -> list[tuple[int, int]]:
        """Return (round, client) of every saved observation, in order, or of those of one round."""
        return [
            place for place in exchanges.numbered(self.storage, "observations") if round in (None, place[0])
        ]

    def count_observations(self) -> int:
        """Return how many observations are saved."""
        return len(exchanges.numbered(self.storage, "observations"))

    def keep_truth(self, truth: Truth) -> None:
        """Save a private batch for the evaluator."""
        exchanges.write_truth(self.storage, truth)

    def truth(self, round: int, client: int) -> Truth | None:
        """Read the private batch behind an observation, if it is known."""
        return exchanges.read_truth(self.storage, round, client)

    def keep_inputs(self, inputs: Inputs | None) -> None:
        """Keep what the inputs of the task are, unless they are images."""
        forms.write_inputs(self.storage, inputs)

    def inputs(self) -> Inputs | None:
        """Read what the inputs are; None: images."""
        return forms.read_inputs(self.storage)

    def has_truth(self) -> bool:
        """Say whether any private batch is known."""
        return bool(exchanges.numbered(self.storage, "truth"))

    def keep_guess(self, round: int, client: int, guess: Reconstruction, partial: bool = False) -> None:
        """Save what an attack recovered; partial: it was interrupted."""
        exchanges.write_guess(self.storage, round, client, guess, partial=partial)

    def guess(self, round: int, client: int, *, whole: bool = False) -> Reconstruction | None:
        """Read what an attack recovered, if it got that far; whole: if it was not interrupted."""
        return exchanges.read_guess(self.storage, round, client, whole=whole)

    def guessed(self) -> list[tuple[int, int]]:
        """Return (round, client) of every saved guess, in order."""
        return exchanges.numbered(self.storage, "guesses")

    def keep_weights(self, weights: Weights, round: int) -> None:
        """Save the global model after a round: the last thing that is written of it."""
        self.storage.write_tensors(MODEL_FILE, weights, {"round": round})

    def last_round(self) -> tuple[int, Weights]:
        """Return the last round that is complete, and the global model after it; 0 and nothing before any."""
        if (found := self.storage.read_tensors(MODEL_FILE)) is None:
            return 0, {}
        with reading(self.path / MODEL_FILE):
            return int(found[1].get("round", 0)), found[0]

    def forget_after(self, round: int) -> None:
        """Remove what is kept of rounds that did not end."""
        for name, kind in TABLES.items():
            if self.storage.has(name):
                kept = [row for row in read_rows(self.storage, name, kind) if row.round <= round]
                write_rows(self.storage, name, kind, kept)
        numbers = {name: re.search(r"round_(\d+)", name) for name in self.storage.names()}
        self.storage.delete(name for name, found in numbers.items() if found and int(found[1]) > round)

    def forget_private(self) -> None:
        """Remove private batches, what was seen of them, and what attacks made of that."""
        kinds = ("observations/", "truth/", "guesses/", "clients/", "proofs/")
        self.storage.delete([name for kind in kinds for name in self.storage.names(kind)])

    def seal_tables(self) -> None:
        """Write tables that grew line by line as whole files: from now on, a lost end is a damage."""
        for name in GROWING:
            if (content := self.storage.read(name)) is not None:
                self.storage.write(name, content)

    def keep_fault(self, fault: Fault) -> None:
        """Add a fault to faults.csv."""
        append_row(self.storage, "faults.csv", replace(fault, reason=shortened(printable(fault.reason))))

    def faults(self) -> list[Fault]:
        """Read faults.csv."""
        return read_rows(self.storage, "faults.csv", Fault)

    def keep_verdict(self, verdict: Verdict) -> None:
        """Add an audit's verdict to verdicts.csv, and to the ledger."""
        ledger.keep_verdict(self.storage, verdict)

    def verdicts(self) -> list[Verdict]:
        """Read verdicts.csv."""
        return read_rows(self.storage, "verdicts.csv", Verdict)

    def keep_proof(self, round: int, client: int, sealed: bytes) -> None:
        """Enter a client's proof in the ledger, and keep it as it came in."""
        ledger.keep_proof(self.storage, sealed, round=round, client=client)

    def keep_commitment(self, round: int, client: int, commitment: Commitment) -> None:
        """Enter what a client commits to in the ledger."""
        ledger.keep_commitment(self.storage, commitment, round=round, client=client)

    def keep_malicious(self, malicious: Sequence[str]) -> None:
        """Write who cheats, and how: the evaluator's side channel."""
        rows = [MaliciousClient(client=client, behaviour=name) for client, name in enumerate(malicious)]
        write_rows(self.storage, "malicious.csv", MaliciousClient, rows)

    def malicious(self) -> dict[int, str]:
        """Read who cheats, and how; empty when nobody does."""
        rows = read_rows(self.storage, "malicious.csv", MaliciousClient)
        return {row.client: row.behaviour for row in rows if row.behaviour}

    def keep_round(self, result: RoundResult) -> None:
        """Add a round's test result to history.csv."""
        append_row(self.storage, "history.csv", result)

    def history(self) -> list[RoundResult]:
        """Read history.csv."""
        return read_rows(self.storage, "history.csv", RoundResult)

    def write_scores(self, rows: Sequence[ScoreRow]) -> None:
        """Write scores.csv."""
        write_rows(self.storage, "scores.csv", ScoreRow, rows)

    def scores(self) -> list[ScoreRow]:
        """Read scores.csv."""
        return read_rows(self.storage, "scores.csv", ScoreRow)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        self.storage.write_text(SUMMARY_FILE, json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def summary(self) -> dict[str, Any]:
        """Read summary.json; empty when the run did not get that far."""
        return read_summary(self.storage)

    @property
    def standing(self) -> Standing:
        """How the run stands, and why."""
        return standing_of(self.summary())

    @property
    def status(self) -> Status | None:
        """How the run stands; None when it never began."""
        return self.standing.status

    def adopt(self, source: "RunFolder") -> None:
        """Copy what a replay takes over from the run that it attacks: truth, history, clients' faults."""
        names = [exchanges.file_of("truth", *place) for place in exchanges.numbered(source.storage, "truth")]
        for name in (*names, *TABLES, "malicious.csv"):
            if not self.storage.has(name) and (content := source.storage.read(name)) is not None:
                self.storage.write(name, content)

    def source(self) -> Path | None:
        """Return the run that this replay attacks; None: it is no replay."""
        found = _SOURCE.search(self.config_text())
        return None if found is None or self.kind != "replay" else Path(json.loads(found[1]))

    def claimed(self) -> AbstractContextManager[None]:
        """Keep other processes from writing here, too; the claim ends with this process at the latest."""
        return self.storage.claimed()

    def begin(self, kind: str, config_text: str, source: "RunFolder | None" = None) -> None:
        """Write config.yaml, which makes this a run folder; an earlier run's is never written over.

        source: the run that a replay attacks.
        """
        if (self.path / CONFIG_FILE).exists():
            raise FedsimError(
                f"{self.path} already holds a run. Remedy: another hydra.run.dir, or remove the folder."
            )
        make_private(self.path)
        attacked = "" if source is None else f"source: {json.dumps(str(source.path.resolve()))}\n"
        self.storage.write_text(CONFIG_FILE, f"format: {FORMAT}\nkind: {kind}\n{attacked}{config_text}")

    def config_text(self) -> str:
        """Read config.yaml, if this version of fedsim understands it."""
        return read_config(self.storage)[0]

    @property
    def kind(self) -> str:
        """What was played here: a run, replay, wiretap, sweep, comparison, game, proof or calibration."""
        return read_config(self.storage)[1]
