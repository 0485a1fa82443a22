"""Are the records of an audited run what its verifier wrote?"""

import hashlib
from pathlib import Path

from omegaconf import OmegaConf

from fedsim.core.errors import FedsimError
from fedsim.defenses.integrity.proof.keyfiles import LEDGER_PUBLIC, read_key
from fedsim.defenses.integrity.proof.seal import signing_key
from fedsim.storage.heading import CONFIG_FILE
from fedsim.storage.ledger import FIRST, LEDGER, check_run


def check_audited(run: Path, head: str | None, keys: Path | None = None) -> tuple[int, str | None, str]:
    """Return how many proofs a run was sent, what was changed since, and the head of its ledger.

    The head must be signed with the verifier's key, ledger.public in `keys`. Where the run had none, with the
    key of its seed: who knows the seed could sign another, so a head that was kept elsewhere says more.
    """
    try:
        config = OmegaConf.load(run / CONFIG_FILE)
        seed, named = int(OmegaConf.select(config, "seed")), OmegaConf.select(config, "audit.keys")
    except Exception as error:  # yaml's are many, and none tells more
        raise FedsimError(f"{run / CONFIG_FILE}: expected the config of a run, with its seed") from error
    if keys is not None:
        key = read_key(keys, LEDGER_PUBLIC).hex()
    elif named is not None:
        raise FedsimError(
            f"{run}: signed with a key of {named}. Remedy: --keys DIR, with your {LEDGER_PUBLIC}."
        )
    else:
        key = signing_key(seed, "verifier").public_key().public_bytes_raw().hex()
    number, problem = check_run(run, head, key)
    ledger = run / LEDGER
    lines = ledger.read_bytes().splitlines(keepends=True) if ledger.is_file() else []
    return number, problem, hashlib.sha256(lines[-1]).hexdigest() if lines else FIRST
