"""`fedsim keys`: the keys of a prover and of a verifier."""

from pathlib import Path

import click


@click.command("keys", short_help="make a prover's and a verifier's keys")
@click.argument("folder", type=click.Path(path_type=Path))
def command(folder: Path) -> None:
    """Write the key pairs of a prover and of a verifier into FOLDER; keys that are there stay."""
    from fedsim.integrity.keys import make_keys

    make_keys(folder)
    print("each keeps its .secret and gives its .public to the other")
    print(folder.resolve())
