"""The apps that Flower's deployment engine starts, in processes of its own. They build themselves.

Run config: `folder`, a run folder that `fedsim engine=deploy` made, and `done`, its rounds that were played
before. Without a folder, as after `flwr run .` in a checkout, the server app is the whole experiment: it is
composed of `overrides`, and its run folder is runs/flwr/RUN below the working folder of Flower's processes.
"""

import dataclasses
import functools
import json
import logging
import math
import shlex
import time
import traceback
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsim.core.errors import FedsimError, in_words
from fedsim.flower.engines.deploy import STATUS_FILE
from fedsim.flower.engines.engine import Apps, Engine
from fedsim.flower.nodes import failure

log = logging.getLogger(__name__)
POLL = 0.5  # seconds between looks for replies; Flower's own grid takes three
AHEAD = 64  # clients that are asked before their replies are taken


@dataclasses.dataclass(frozen=True)
class OnGrid(Engine):
    """The engine inside a server app: Flower has the clients at the other end of its grid."""

    grid: Grid
    context: Context

    def play(self, apps: Apps) -> None:
        """Run the server app until it ends."""
        few_ahead(apps.server, AHEAD)(grid=self.grid, context=self.context)


server_app = ServerApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Play a run's rounds, or without a run folder a whole experiment."""
    from fedsim.config import build
    from fedsim.config.compose import compose, parse_text
    from fedsim.core import environment, progress
    from fedsim.core.training import load_weights
    from fedsim.lab.experiment import play, run
    from fedsim.storage.files import as_bytes, write_whole
    from fedsim.storage.logs import logged
    from fedsim.storage.runfolder import RunFolder

    environment.silence_flower()
    progress.silence()
    engine, path = OnGrid(grid, context), run_folder(context)
    if not context.run_config.get("folder"):
        config = compose(shlex.split(str(context.run_config.get("overrides", ""))))
        folder = run(dataclasses.replace(build.experiment(config), engine=engine), path)
        print(f"{json.dumps(folder.summary()['metrics'])}\n{path}", flush=True)  # to `flwr run --stream`
        return
    write_whole(path / STATUS_FILE, as_bytes(json.dumps({"status": "started"})))
    folder, done, problem = RunFolder(path), int(context.run_config.get("done", 0)), ""
    with logged(path):
        try:
            experiment = build.experiment(parse_text(folder.config_text()))
            if done:
                load_weights(experiment.model, folder.last_round()[1])
            play(dataclasses.replace(experiment, engine=engine), folder, done)
        except BaseException as error:  # Flower ends a stopped run with SystemExit
            problem = in_words(error) if isinstance(error, Exception) else f"stopped ({type(error).__name__})"
            log.debug("%s", traceback.format_exc())
            raise
        finally:
            write_whole(path / STATUS_FILE, as_bytes(json.dumps({"status": "ended", "problem": problem})))


class RebuiltClientApp(ClientApp):
    """The client app of the run that a message belongs to."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        try:
            return _client_app(run_folder(context))(message, context)
        except Exception as error:
            log.exception("client app failed")
            return failure(message, error)


client_app = RebuiltClientApp()


@functools.lru_cache(maxsize=1)
def _client_app(path: Path) -> ClientApp:
    from fedsim.config import build
    from fedsim.flower.client import client_app
    from fedsim.flower.states import ClientStates
    from fedsim.storage.runfolder import RunFolder

    folder = RunFolder(path)
    setup = functools.partial(build.client_setup, folder.config_text(), path)
    return client_app(setup, folder.keep_truth, ClientStates(folder.storage))


def few_ahead(server_app: ServerApp, ahead: int, poll: float = POLL) -> ServerApp:
    """Return the server app on a grid that hands replies on as they come.

    At most `ahead` clients are asked before their replies are taken: a slow server is not flooded.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        def send_and_receive(
            messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterator[Message]:
            left, waiting = iter(messages), set[str]()
            deadline = time.monotonic() + (math.inf if timeout is None else timeout)
            while time.monotonic() < deadline:
                if more := list(islice(left, ahead - len(waiting))):  # Flower refuses to push nothing
                    waiting.update(grid.push_messages(more))
                if not waiting:
                    return
                time.sleep(poll)
                for reply in grid.pull_messages(waiting):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    yield reply

        grid.send_and_receive = send_and_receive  # type: ignore[method-assign]
        server_app(grid=grid, context=context)

    return app


def run_folder(context: Context) -> Path:
    """Return the run folder that a run config names, for its server and all its clients."""
    named = str(context.run_config.get("folder", ""))
    path = Path(named) if named else Path("runs", "flwr", str(context.run_id)).resolve()
    if named and not (path / "config.yaml").is_file():
        raise FedsimError(
            f"expected a run folder, got {path}, which is not here. Remedy: hydra.run.dir on a "
            "disk that the SuperLink and all SuperNodes share."
        )
    return path
