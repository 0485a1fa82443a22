"""`fedsim resume`: go on with a run that was interrupted."""

import click

from fedsim.commands.settings import announce, permitted, run_folder, settings
from fedsim.core.errors import FedsimError


@click.command("resume", short_help="go on with an interrupted run")
@click.argument("run")
@settings
def command(run: str, overrides: tuple[str, ...]) -> None:
    """Go on with RUN after its last complete round, or with its attacks.

    Its settings are as they were. Code of others that its config names runs only with allow=MODULE. A sweep
    or comparison goes on when its command is called again with the same folder.
    """
    from fedsim.config import build
    from fedsim.config.compose import parse_text
    from fedsim.config.trust import check_trusted
    from fedsim.lab.resume import resume
    from fedsim.lab.tapped import source_of
    from fedsim.storage.status import Status

    others, allowed = permitted(overrides)
    folder = run_folder(run, "resume")
    if others:
        raise FedsimError(
            f"expected a run folder alone, got {others[0]!r} beside it: fedsim resume RUN [allow=MODULE]. "
            "Its settings are as they were."
        )
    if (kind := folder.kind) not in ("run", "replay"):
        remedies = {
            "wiretap": "another Flower app's run, kept by a Wiretap. Remedy: fedsim replay.",
            "sweep": "a sweep. Remedy: its command again with hydra.sweep.dir=THIS runs what is missing.",
            "comparison": "a comparison. Remedy: its command again with into=THIS runs what is missing.",
        }
        words = remedies.get(kind, f"a {kind}. Remedy: its command again, into another folder.")
        raise FedsimError(f"{folder.path}: expected a run or a replay, got {words}")
    config = parse_text(folder.config_text())
    check_trusted(config, (), allowed)
    if folder.status is not Status.COMPLETE:
        resume(build.experiment(config), folder, source_of(folder))
    announce(folder)
