"""Are the records of an audited run what its verifier wrote?"""

from pathlib import Path

from omegaconf import OmegaConf

from fedsim.core.errors import FedsimError
from fedsim.defenses.integrity.proof.keyfiles import LEDGER_PUBLIC, read_key
from fedsim.defenses.integrity.proof.seal import signing_key
from fedsim.storage.heading import CONFIG_FILE
from fedsim.storage.ledger import Checked, check_run


def check_audited(run: Path, head: str | None, keys: Path | None = None) -> Checked:
    """Compare the records of a run with its ledger, and say whose key that is signed with.

    The head must be signed with the verifier's key, ledger.public in `keys`. Where the run had none, with the
    key of its seed: who knows the seed could sign another, so a head that was kept elsewhere says more. A run
    folder cannot say whose word it is: its config may have been changed, too.
    """
    try:
        config = OmegaConf.load(run / CONFIG_FILE)
        seed, named = int(OmegaConf.select(config, "seed")), OmegaConf.select(config, "audit.keys")
    except Exception as error:  # yaml's are many, and none tells more
        raise FedsimError(f"{run / CONFIG_FILE}: expected the config of a run, with its seed") from error
    if keys is not None:
        key, words = read_key(keys, LEDGER_PUBLIC).hex(), f"the key in {keys / LEDGER_PUBLIC}"
    elif named is not None:
        raise FedsimError(
            f"{run}: signed with a key of {named}. Remedy: --keys DIR, with your {LEDGER_PUBLIC}."
        )
    else:
        key = signing_key(seed, "verifier").public_key().public_bytes_raw().hex()
        kept = "" if head is None else "; the head is the one that was named"
        words = f"the key of seed {seed}, which anybody can make{kept}"
        if head is None:
            words += ". Remedy: --head, as it was printed when the run ended, or --keys"
    return check_run(run, head, key)._replace(signed_by=words)
