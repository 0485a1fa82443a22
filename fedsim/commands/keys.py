"""`fedsim keys`: the keys of a prover and of a verifier."""

from pathlib import Path

import click

from fedsim.core.errors import FedsimError


@click.command("keys", short_help="make a prover's and a verifier's keys")
@click.argument("folder", type=click.Path(path_type=Path))
def command(folder: Path) -> None:
    """Write the keys of a prover and of a verifier, and its nonce, into FOLDER; keys that are there stay."""
    from fedsim.integrity.keys import make_keys

    if "=" in folder.name:
        raise FedsimError(f"expected a folder, got the setting {folder.name!r}. Usage: fedsim keys FOLDER")
    make_keys(folder)
    print("each keeps its .secret and gives its .public to the other")
    print(folder.resolve())
