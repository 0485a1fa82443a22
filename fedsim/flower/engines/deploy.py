"""Flower's deployment engine: a SuperLink, SuperNodes, and the run's apps in processes of their own."""

import contextlib
import ipaddress
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fedsim.core import environment, progress
from fedsim.core.errors import FedsimError
from fedsim.core.version import __version__
from fedsim.flower.engines.engine import Apps, Engine
from fedsim.flower.engines.processes import Processes
from fedsim.storage.runfolder import MODEL_FILE, RunFolder

STATUS_FILE = Path("deploy", "server.json")  # in the run folder: what the server app says of itself
LOOPBACK = "127.0.0.1"
CONNECTION = "fedsim"  # the name of the SuperLink in Flower's config
GLANCE = 0.2  # seconds between looks at what goes on
LINGER = 5.0  # seconds for the server's last word to reach a shared disk
STOPPING = 30.0  # seconds for a SuperLink to stop a run


class Deploy(Engine):
    """A SuperLink and a SuperNode a client on this machine, or with `address` those that run already."""

    def __init__(
        self,
        *,
        address: str | None = None,
        root_certificates: str | None = None,
        insecure: bool = False,
        patience: float = 120.0,
    ) -> None:
        if patience <= 0:
            raise FedsimError(f"engine.patience: expected more than 0 seconds, got {patience}")
        if address is None and (root_certificates or insecure):
            raise FedsimError(
                "engine.root_certificates and engine.insecure are about engine.address, got none. "
                "Remedy: name the SuperLink's address, or leave them out."
            )
        if address is not None and not re.fullmatch(r"\S+:\d+", address):
            raise FedsimError(f"engine.address: expected HOST:PORT of a SuperLink, got {address!r}")
        if address is not None and not (root_certificates or insecure or _is_loopback(address)):
            raise FedsimError(
                f"engine.address={address}: expected a certificate, as messages would travel unprotected. "
                "Remedy: engine.root_certificates=FILE, or engine.insecure=true on a network you trust."
            )
        self.address = address
        self.certificates = Path(root_certificates).expanduser().resolve() if root_certificates else None
        self.patience = patience

    def play(self, apps: Apps) -> None:
        """Run the apps until the server app ends, then stop all that was started."""
        # Not asked when it is made: the server app makes one too, and may have no such file.
        if self.certificates and not self.certificates.is_file():
            raise FedsimError(f"engine.root_certificates: no such file: {self.certificates}")
        environment.silence_flower()
        (apps.folder / STATUS_FILE).unlink(missing_ok=True)
        processes = Processes(apps.folder / STATUS_FILE.parent)
        private = Path(tempfile.mkdtemp(prefix="deploy-", dir=environment.private_folder()))
        try:
            address = self.address or self._federation(processes, private, apps.clients)
            app = write_app(private, apps, address, self.certificates)
            try:
                processes.start("run", ["flwr", "run", str(app), CONNECTION, "--stream"], _variables(private))
                self._wait(processes, apps)
            except BaseException:
                if self.address:  # a SuperLink that stays must not go on with it
                    _stop_run(processes.log("run"), private)
                raise
        finally:
            processes.stop()
            shutil.rmtree(private, ignore_errors=True)

    def _federation(self, processes: Processes, private: Path, clients: int) -> str:
        """Start a SuperLink and the SuperNodes on loopback, and return the SuperLink's address."""
        ports = free_ports(1 + clients)
        link = f"{LOOPBACK}:{ports[0]}"
        # Flower would start a SuperExec in a session that nobody could end: so they are started here.
        shared = ["--insecure", "--isolation", "process", "--host", LOOPBACK]
        off = "--disable-runtime-dependency-installation"
        started = ["flower-superlink", *shared, "--port", str(ports[0]), off]
        processes.start("superlink", started, _variables(private, "superlink"))
        self._await_port(processes, ports[0])
        executor = ["flower-superexec", "--insecure", "--runtime-api-address"]
        processes.start("superexec", [*executor, link], _variables(private, "superlink"))
        for client, port in enumerate(ports[1:]):
            name = f"supernode_{client}"
            node = ["flower-supernode", *shared, "--port", str(port), "--superlink", link]
            processes.start(name, node, _variables(private, name))
            own = [*executor, f"{LOOPBACK}:{port}"]
            processes.start(f"superexec_{client}", own, _variables(private, name))
        return link

    def _await_port(self, processes: Processes, port: int) -> None:
        deadline = time.monotonic() + self.patience
        while True:
            processes.check()
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=GLANCE):
                return
            if time.monotonic() > deadline:
                words = (
                    f"the SuperLink did not listen within {self.patience:g} s{processes.said('superlink')}"
                )
                raise FedsimError(f"{words}. Remedy: a larger engine.patience, or engine=inline.")
            time.sleep(GLANCE)

    def _wait(self, processes: Processes, apps: Apps) -> None:
        """Wait until the server app has ended; its error is raised here in its own words."""
        deadline, gone = time.monotonic() + self.patience, float("inf")
        rounds = _rounds_done(apps.folder)
        with progress.bar("rounds", apps.rounds) as advance:
            while True:
                status, problem = _server_status(apps.folder)
                if problem:
                    raise FedsimError(problem)
                if status == "ended":
                    return
                processes.check("run")
                now = time.monotonic()
                if processes.ended("run"):
                    gone = min(gone, now + LINGER)
                if now > gone:
                    raise FedsimError(f"Flower's run ended before the server did{processes.said('run')}")
                if not status and now > deadline:
                    raise FedsimError(
                        f"no server app started within {self.patience:g} s{processes.said('run')}. Remedy: a "
                        f"larger engine.patience; with engine.address, {apps.folder} on a disk of all."
                    )
                advance(next(rounds))
                time.sleep(GLANCE)


def write_app(private: Path, apps: Apps, address: str, certificates: Path | None) -> Path:
    """Write a Flower app that plays this run, and the config that names its SuperLink; return the app."""
    secure = f"root-certificates = {_toml(str(certificates))}" if certificates else "insecure = true"
    home = private / "flwr"
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f"[superlink]\ndefault = {_toml(CONNECTION)}\n\n"
        f"[superlink.{CONNECTION}]\naddress = {_toml(address)}\n{secure}\n",
        encoding="utf-8",
    )
    app = private / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(
        f"""[project]
name = "fedsim-run"
version = {_toml(__version__)}
description = "A run of fedsim"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedsim"

[tool.flwr.app.components]
serverapp = "fedsim_run:server_app"
clientapp = "fedsim_run:client_app"

[tool.flwr.app.config]
folder = {_toml(str(apps.folder))}
done = {apps.done}
""",
        encoding="utf-8",
    )
    (app / "fedsim_run.py").write_text(
        '"""A run of fedsim."""\n\nfrom fedsim.lab.deployed import client_app, server_app\n\n'
        '__all__ = ["client_app", "server_app"]\n',
        encoding="utf-8",
    )
    return app


def free_ports(number: int) -> list[int]:
    """Return ports of loopback that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]


def _variables(private: Path, name: str = "flwr") -> dict[str, str]:
    """Return the environment of Flower's processes: what this one can import, files in a private folder."""
    temporary = private / "tmp"
    temporary.mkdir(exist_ok=True)
    own = {
        "FLWR_HOME": str(private / name),  # each its own: several at once may install the app
        "TMPDIR": str(temporary),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "PYTHONUNBUFFERED": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(GLANCE),
    }
    for key in ("NO_PROXY", "no_proxy"):  # loopback through a proxy would end elsewhere
        own[key] = ",".join(filter(None, [os.environ.get(key), LOOPBACK, "localhost"]))
    return dict(os.environ) | own


def _server_status(folder: Path) -> tuple[str, str]:
    """Return what the server app says of itself: nothing yet, started or ended; and its problem."""
    try:
        said = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "", ""
    return str(said.get("status", "")), str(said.get("problem", ""))


def _rounds_done(folder: Path) -> Iterator[int]:
    """Return again and again how many rounds are complete; the model is read only when it is new."""
    seen, done = 0, 0
    while True:
        with contextlib.suppress(FileNotFoundError):
            if (changed := (folder / MODEL_FILE).stat().st_mtime_ns) != seen:
                seen, done = changed, RunFolder(folder).last_round()[0]
        yield done


def _stop_run(log: Path, private: Path) -> None:
    """Ask a SuperLink to stop the run that `flwr run` started there."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if found := re.search(r"started run (\d+)", text):
        command = [sys.executable, "-m", "fedsim.flower.engines.processes", str(os.getpid())]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*command, "flwr", "stop", found[1], CONNECTION],
                env=_variables(private),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                timeout=STOPPING,
            )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
