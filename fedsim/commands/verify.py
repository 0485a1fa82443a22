"""`fedsim verify`: judge a proof, or the records of an audited run."""

import secrets
import sys
from pathlib import Path

import click

from fedsim.commands.settings import settings
from fedsim.core.errors import FedsimError, in_words


@click.command("verify", short_help="judge a proof, or an audited run's records")
@click.argument("proof", type=click.Path(path_type=Path))
@click.option(
    "--parent",
    multiple=True,
    help="The proof of the model that PROOF begins at, with settings that are other for it: "
    "'FILE proof.steps=100'; again for the parent's own parent.",
)
@click.option("--loop", help="Of a proof of your own loop: MODULE.FUNCTION, which is run where it is drawn.")
@click.option(
    "--verifiers", type=click.IntRange(1, 64), default=1, help="Processes that share the intervals."
)
@click.option("--head", help="Of a RUN: the head of its ledger, as it was printed when the run ended.")
@click.option("--keys", type=click.Path(path_type=Path), help="Of a RUN with audit.keys: the folder of them.")
@click.option(
    "--again", is_flag=True, help="Of a RUN: judge all its proofs once more, by its config and data."
)
@settings
def command(
    proof: Path,
    overrides: tuple[str, ...],
    parent: tuple[str, ...],
    loop: str | None,
    verifiers: int,
    head: str | None,
    keys: Path | None,
    again: bool,
) -> None:
    """Judge PROOF, a file of `fedsim prove`, by data=... model=... proof.keys=DIR; or the ledger of a RUN.

    `fedsim verify MODEL PROOF` also checks that the weights in MODEL are those that the proof ends with.
    Exit status: 0 accepted, 1 rejected, 2 malformed, 3 could not be judged.
    """
    from fedsim.commands.central import Errand, judged_file, parent_of
    from fedsim.commands.cli import complain
    from fedsim.integrity.audited import check_audited
    from fedsim.integrity.models import model_bytes
    from fedsim.integrity.shares import judged_together
    from fedsim.integrity.verify import read_proof

    model = None
    if overrides and "=" not in overrides[0]:
        model, proof, overrides = proof, Path(overrides[0]), overrides[1:]
    try:
        if proof.is_dir():
            found = check_audited(proof, head, keys)
            same = f"unchanged: {found.proofs} proofs, as in the ledger"
            print(f"changed: {found.problem}" if found.problem else same)
            print(f"head: {found.head}\nsigned by: {found.signed_by}")
            sys.exit(1 if found.problem or (again and not _holds(proof, overrides)) else 0)
        if again or head is not None or keys is not None:
            raise FedsimError("--again, --head, --keys: expected the folder of an audited run, got a file")
        seed = secrets.randbits(62)  # of the machine's own chance: nobody can know it beforehand
        file, parents = read_proof(proof), [parent_of(text) for text in parent]
        weights = None if model is None else (model, model_bytes(model))
        errands = [
            Errand(file, overrides, loop, weights, parents, seed, (number, verifiers))
            for number in range(verifiers)
        ]
        verdict = judged_together(judged_file, errands)
    except (FedsimError, MemoryError) as error:
        words = in_words(error) if isinstance(error, FedsimError) else "more memory than there is"
        complain(f"{proof}: could not be judged: {words}" if isinstance(error, MemoryError) else words)
        sys.exit(3)  # neither accepted nor rejected
    cost = f"{verdict.recomputed} of {verdict.steps} steps done again in {verdict.seconds:.2f} s"
    if verdict.accepted:
        print(f"accepted: {cost}, largest distance {verdict.distance:.3g} of at most {verdict.limit:.3g}")
        print(f"chance that one false interval went unseen: {verdict.unseen:.3g}")
        print(f"taken from the prover's own word: {verdict.unpinned or 'nothing'}")
        return
    where = "" if verdict.step is None else f", step {verdict.step}"
    print(f"rejected: {verdict.check}{where}: {verdict.reason}")
    sys.exit(2 if verdict.check == "form" else 1)


def _holds(run: Path, overrides: tuple[str, ...]) -> bool:
    """Judge the kept proofs of a run again, and say which verdicts do not come out as they are recorded."""
    from fedsim.commands.settings import permitted
    from fedsim.config import build
    from fedsim.config.compose import parse_text
    from fedsim.config.trust import check_trusted
    from fedsim.integrity.kept import judged_again
    from fedsim.storage.runfolder import RunFolder

    others, allowed = permitted(overrides)
    if others:
        raise FedsimError(
            f"expected a run folder alone, got {others[0]!r} beside it: its settings are its own"
        )
    folder = RunFolder(run)
    config = parse_text(folder.config_text())
    check_trusted(config, (), allowed)
    twice = list(judged_again(build.experiment(config), folder))
    differing = [one for one in twice if one.differs]
    for one in differing:
        was, now = one.recorded, one.again
        words = "accepted" if now.accepted else f"rejected: {now.check}: {now.reason}"
        before = "accepted" if was.accepted else f"rejected: {was.check}"
        print(f"round {was.round}, client {was.client}: recorded as {before}; again: {words}")
    print(f"judged again: {len(twice) - len(differing)} of {len(twice)} verdicts hold")
    return not differing
