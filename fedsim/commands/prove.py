"""`fedsim prove`: train with a sealed proof of learning."""

import click

from fedsim.commands.settings import settings


@click.command("prove", short_help="train with a sealed proof of learning")
@settings
def command(overrides: tuple[str, ...]) -> None:
    """Train outside of a federation, with a sealed proof of learning: data=... model=... proof.steps=N."""
    from fedsim.commands.central import central
    from fedsim.config.compose import as_text
    from fedsim.storage.folder import Storage

    audit, training, config = central(overrides)
    path = audit.prove_training(training)
    Storage(path.parent).write_text("proof.yaml", as_text(config))  # what to verify it with
    print(f"proof: {path.stat().st_size:,} bytes")
    print(path.resolve())
