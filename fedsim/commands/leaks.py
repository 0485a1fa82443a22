"""`fedsim leaks`: what a deployment leaks, to the strongest attacks that fit it."""

import click

from fedsim.commands.settings import permitted, play_many, run_folder, settings


@click.command("leaks", short_help="what a deployment leaks, and which defense is worth its price")
@settings
def command(overrides: tuple[str, ...]) -> None:
    """Try every kind of attack that fits a federation, behind its defenses and behind others.

    Either describe the federation as for a run (model=lenet5 'defense=[clip,noise]'), or name a folder with
    observations first: an earlier run's, or what a Wiretap kept of your own Flower app, with the settings
    that its replay takes. Attacks are chosen by kind (leaks.attacks), defenses to compare with by
    leaks.ladder, for leaks.minutes=10. into=DIR names the folder; the same again runs what is missing there.
    """
    from fedsim.lab.leak_audits import federation_audit, recording_audit
    from fedsim.lab.leaks import find_leaks

    if overrides and "=" not in overrides[0]:
        named, allowed = permitted(overrides[1:])
        audit = recording_audit(run_folder(overrides[0], "leaks"), named, allowed)
    else:
        audit = federation_audit(overrides)
    play_many(audit.comparison.folder, lambda: find_leaks(audit))
