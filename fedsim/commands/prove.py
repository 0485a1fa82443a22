"""`fedsim prove`: train with a sealed proof of learning."""

from collections.abc import Sequence

import click

from fedsim.commands.settings import settings, tell_folder


@click.command("prove", short_help="train with a sealed proof of learning")
@settings
def command(overrides: tuple[str, ...]) -> None:
    """Train outside of a federation, with a sealed proof of learning: data=... model=... proof.steps=N."""
    prove_by(overrides)


def prove_by(overrides: Sequence[str]) -> None:
    """Train with a proof, and say where it is."""
    from fedsim.commands.central import central
    from fedsim.config.compose import as_text
    from fedsim.integrity.prove import prove
    from fedsim.storage.runfolder import RunFolder

    audit, training, found = central(overrides)
    name, text = str(found.config.name), as_text(found.config)
    kind = audit.how.distance
    path = prove(training, audit.every, RunFolder(found.folder), name=name, config_text=text, kind=kind)
    print(f"proof: {path.resolve()} ({path.stat().st_size:,} bytes)")
    tell_folder(found.folder)
