"""`fedsim replay`: attack saved observations again."""

import click

from fedsim.commands.settings import announce, permitted, run_folder, settings


@click.command("replay", short_help="attack saved observations again")
@click.argument("run")
@settings
def command(run: str, overrides: tuple[str, ...]) -> None:
    """Attack the observations of RUN again, without training: attack=..., metric=[...], threat.....

    RUN may be a folder that a Wiretap filled from your own Flower app: then model=module.Class names its
    model, task.input_shape=[3,32,32] task.num_classes=10 the form of its data, and disclosed.NAME=VALUE what
    the attacker knows. Code of others that RUN's config names runs only with allow=MODULE.
    """
    from fedsim.lab.experiment import replay
    from fedsim.lab.replay import prepare_replay

    named, allowed = permitted(overrides)
    announce(replay(*prepare_replay(run_folder(run, "replay"), named, allowed)))
