"""Are the records of an audited run what its verifier wrote?"""

import hashlib
from pathlib import Path

from omegaconf import OmegaConf

from fedsim.core.errors import FedsimError
from fedsim.defenses.integrity.proof.seal import signing_key
from fedsim.storage.heading import CONFIG_FILE
from fedsim.storage.ledger import FIRST, LEDGER, check_run


def check_audited(run: Path, head: str | None) -> tuple[int, str | None, str]:
    """Return how many proofs a run was sent, what was changed since, and the head of its ledger.

    The head must be signed with the key of the run's seed; who knows the seed could sign another, so a head
    that was kept elsewhere says more.
    """
    try:
        seed = int(OmegaConf.select(OmegaConf.load(run / CONFIG_FILE), "seed"))
    except Exception as error:  # yaml's are many, and none tells more
        raise FedsimError(f"{run / CONFIG_FILE}: expected the config of a run, with its seed") from error
    key = signing_key(seed, "verifier").public_key().public_bytes_raw().hex()
    number, problem = check_run(run, head, key)
    ledger = run / LEDGER
    lines = ledger.read_bytes().splitlines(keepends=True) if ledger.is_file() else []
    return number, problem, hashlib.sha256(lines[-1]).hexdigest() if lines else FIRST
