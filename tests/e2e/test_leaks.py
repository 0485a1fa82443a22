"""`fedsim leaks`: from settings, and from a recording, to one page."""

import json
from pathlib import Path

import forked
import pytest
from small_settings import DATA

SMALL = (*DATA, "federation.clients=2", "federation.batch_size=4", "metric=[irec,psnr,certified]")
LISTED = (
    "leaks.attacks={labels: [ilrg], exact: [peeling], crafted: [stein_exact], text: [dager]}",
    "leaks.attacks.matching=[]",
    "leaks.attacks.table=[]",
    "leaks.ladder=[{noise: {sigma: 1}}]",
    "leaks.minutes=5",
)


@pytest.mark.slow
def test_a_federation_and_its_recording(tmp_path: Path) -> None:
    done = forked.fedsim("leaks", *SMALL, *LISTED, "federation.rounds=1", "into=audit", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "audit/summary.json").read_text())
    assert "A server that only looks at what it receives recovers, with no defense" in summary["answer"]
    assert "A server that sends weights of its own recovers" in summary["answer"]
    page = (tmp_path / "audit/report.html").read_text()
    assert "What leaks: fcn3 on" in page
    assert "does not fit" in page
    assert "fedsim leaks" in page

    again = forked.fedsim("leaks", *SMALL, *LISTED, "federation.rounds=1", "into=audit", cwd=tmp_path)
    assert json.loads((tmp_path / "audit/summary.json").read_text())["points"] == summary["points"]
    assert again.returncode == 0, again.stderr

    recording = tmp_path / "audit/trainings/none_0"
    done = forked.fedsim("leaks", str(recording), *LISTED, "into=recorded", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recorded = json.loads((tmp_path / "recorded/summary.json").read_text())
    assert "recovers, as recorded" in recorded["answer"]
    sending = next(one for one in recorded["chosen"] if one["attack"] == "stein_exact")
    assert "what was sent is on record" in sending["reason"]
    assert recorded["points"][1].startswith("noise (sigma 1): stops all"), recorded["points"]
