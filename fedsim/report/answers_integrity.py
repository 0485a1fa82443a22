"""What audits, forging games, proofs and calibrations come to, in a sentence or two."""

from collections.abc import Mapping, Sequence

from fedsim.core.errors import shortened
from fedsim.core.types import Verdict
from fedsim.report.answers import Answer, counted, listed
from fedsim.report.forging_table import by_forgery
from fedsim.storage.findings import Finding
from fedsim.storage.games import MoveRow
from fedsim.storage.status import Standing, Status

NAMED = 6  # clients, or forgeries, that a sentence names


def audit_answer(verdicts: Sequence[Verdict], malicious: Mapping[int, str]) -> Answer:
    """Say who was caught, who got through, and who was wronged."""
    said, breached = list[str](), False
    for name in dict.fromkeys(malicious.values()):
        own = [verdict for verdict in verdicts if malicious.get(verdict.client) == name]
        if not own:
            continue
        caught, clients = sum(not verdict.accepted for verdict in own), sorted({v.client for v in own})
        who = f"{name} ({_clients(clients)})"
        if caught == len(own):
            said.append(f"The audit caught {who} every time: {_share(caught, len(own))} rejected.")
        elif caught:
            let = len(own) - caught
            said.append(f"The audit caught {who} in {_share(caught, len(own))}; {let} went through.")
        else:
            said.append(f"The audit never caught {who}: all of {counted(len(own), 'proof')} went through.")
        breached = breached or caught < len(own)
    honest = [verdict for verdict in verdicts if not malicious.get(verdict.client)]
    wronged = [verdict for verdict in honest if not verdict.accepted]
    if honest:
        if wronged:
            who = _clients(sorted({verdict.client for verdict in wronged}))
            said.append(f"It wrongly rejected {_share(len(wronged), len(honest))} of honest clients ({who}).")
        elif malicious:
            said.append(f"No honest client was rejected ({counted(len(honest), 'proof')}).")
        else:
            said.append(f"Nobody cheated, and none of {counted(len(honest), 'proof')} was rejected.")
    chances = [verdict.unseen for verdict in verdicts if verdict.accepted and verdict.unseen]
    if chances:
        said.append(
            f"One false interval of an accepted proof would go unseen in {max(chances):.2g} of cases."
        )
    return Answer(sentences=tuple(said), breached=breached)


def _share(part: int, all_of: int) -> str:
    return f"{part:,} of {counted(all_of, 'proof')}"


def _clients(numbers: Sequence[int]) -> str:
    if len(numbers) > NAMED:
        return counted(len(numbers), "client")
    return f"client{'' if len(numbers) == 1 else 's'} {listed(numbers)}"


def unaudited_answer(malicious: Mapping[int, str], clients: int) -> Answer:
    """Say who cheated where nobody looked."""
    names = dict.fromkeys(malicious.values())
    return Answer(
        sentences=(
            f"{len(malicious):,} of {counted(clients, 'client')} cheated ({listed(names)}); nobody looked.",
        ),
        breached=True,
    )


def game_answer(moves: Sequence[MoveRow], standing: Standing) -> Answer:
    """Say how many forgeries were accepted, whose, and how far the others were off."""
    said = list[str]()
    if standing.status is not Status.COMPLETE:
        said.append(f"This game did not complete: {shortened(str(standing), 300)}.")
    won = sum(move.accepted for move in moves)
    groups = dict(by_forgery(moves))
    winning = {name: sum(m.accepted for m in own) for name, own in groups.items()}
    if not moves:
        said.append("No claim was made.")
    elif not won:
        said.append(f"0 of {len(moves):,} claims were accepted: no forgery got through ({_names(groups)}).")
    else:
        each = [f"{name} {number} of {len(groups[name])}" for name, number in winning.items() if number]
        more = f", and {len(each) - NAMED} more" if len(each) > NAMED else ""
        said.append(f"{won:,} of {len(moves):,} claims were accepted: {', '.join(each[:NAMED])}{more}.")
        if losing := [name for name, number in winning.items() if not number]:
            said.append(f"Never accepted: {_names(losing)}.")
    judged = [m for m in moves if m.judged and m.error is not None and not m.accepted]
    if moves and not won and (ratios := [m.error / m.benign for m in judged if m.error and m.benign]):
        said.append(f"The nearest ended {min(ratios):,.3g} times as far off as honest recomputation does.")
    return Answer(sentences=tuple(said), breached=won > 0)


def _names(names: Sequence[str] | Mapping[str, object]) -> str:
    shown = [shortened(name, 60) for name in list(names)[:NAMED]]
    return listed(shown) if len(names) <= NAMED else f"{', '.join(shown)} and {len(names) - NAMED} more"


def proof_answer(*, setting: str, steps: int, size: int, standing: Standing) -> Answer:
    """Say what was recorded, and that nobody has checked it yet."""
    if standing.status is not Status.COMPLETE:
        return Answer(sentences=(f"This proof did not complete: {shortened(str(standing), 300)}.",))
    sealed = f"A training of {counted(steps, 'step')} of {setting} is recorded and sealed in {size:,} bytes."
    return Answer(sentences=(f"{sealed} Nobody has checked it yet: fedsim verify does.",))


def calibration_answer(found: Sequence[Finding], setting: str, standing: Standing) -> Answer:
    """Say which limits the studies lead to, or how much there is to read."""
    said = list[str]()
    if standing.status is not Status.COMPLETE:
        said.append(f"This calibration did not complete: {shortened(str(standing), 300)}.")
    deltas = [finding for finding in found if finding.figure == "delta"]
    if deltas:
        each = [
            f"{finding.value:.2g} ({finding.case.replace('delta for ', '')})" for finding in deltas[:NAMED]
        ]
        limits = listed(each, "or")
        said.append(f"For {setting}, a delta of {limits} tells honest recomputation here from a lie.")
    studies = listed(dict.fromkeys(finding.study for finding in found))
    if found:
        said.append(f"{counted(len(found), 'figure')} of {studies}{'' if deltas else f' ({setting})'}.")
    else:
        said.append("Nothing was measured.")
    return Answer(sentences=tuple(said))
