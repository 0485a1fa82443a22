"""A run that was interrupted goes on after its last complete round."""

import logging

from fedsim.core.training import load_weights
from fedsim.lab.assess import assess
from fedsim.lab.experiment import Experiment, experimenting, play, tracking
from fedsim.lab.record import SCORED, finish
from fedsim.storage.logs import logged
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Standing, Status

log = logging.getLogger(__name__)


def resume(experiment: Experiment, folder: RunFolder, source: RunFolder | None = None) -> RunFolder:
    """Go on with a run that was interrupted: after its last complete round, or with its attacks.

    source: the run that it attacks, if it is a replay.
    """
    if (summary := folder.summary()).pop(SCORED, False):
        with folder.claimed(), logged(folder.path):
            finish(folder, summary | Standing(Status.COMPLETE).fields, experiment.keep)
        return folder
    with tracking(experiment, folder) as told, experimenting(experiment, folder):
        if source is not None:
            folder.adopt(source)
            assess(experiment, source, folder)
            return folder
        done, weights = folder.last_round()
        folder.forget_after(done if done else -1)
        log.info("resumed after round %d", done)
        if weights and done:
            load_weights(experiment.model, weights)
        if done < experiment.federation.rounds:
            play(experiment, folder, done, told)
        assess(experiment, folder, folder)
    return folder
