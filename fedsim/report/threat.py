"""Who attacks whom, with what knowledge, behind which defense: a run's setting in some sentences."""

from collections.abc import Collection, Mapping
from typing import Any

from fedsim.core.types import ALL

TOLD = {
    "num_examples": "its number of examples",
    "learning_rate": "its learning rate",
    "local_steps": "its number of local steps",
    "loss": "its loss",
    "class_counts": "its class counts",
}


def place_name(round: int, client: int) -> str:
    """Name an observation in words."""
    return f"round {round}, " + ("all clients" if client == ALL else f"client {client}")


def threat_model(config: dict[str, Any], sizes: Collection[int] = (), prior: str = "") -> str:
    """Say who attacks whom; sizes: of the batches that there were; prior: what it was learnt from."""
    words = _model(config, sizes)
    return f"{words} What the gradient leaves open, a prior learnt from {prior} fills in." if prior else words


def _model(config: dict[str, Any], sizes: Collection[int]) -> str:
    if "wiretap" in config:
        return _tapped_model(config)
    rules, choices = config["federation"], config["choices"]
    if "secure_aggregation" in (config["defense"] or {}):
        sizes = ()  # of sums: no client's own
    clients = f"{rules['clients']:,} client{'' if rules['clients'] == 1 else 's'}"
    if (share := rules.get("participation", 1.0)) < 1:
        clients += f" ({100 * share:g} % of them a round)"
    rounds = f"{rules['rounds']} round{'' if rules['rounds'] == 1 else 's'}"
    if rules["mode"] == "fedsgd":
        reply = f"the gradient of a batch of {batch_size(rules['batch_size'], sizes)}"
    else:  # a truth holds the examples of all local steps
        reply = f"its update after {rules['local_steps']} local steps on batches of {rules['batch_size']}"
        reply += f" ({batch_size(0, sizes)} in all)" if sizes else ""
    untold = ("learning_rate", "local_steps") if rules["mode"] == "fedsgd" else ()  # a gradient has neither
    told = ", ".join(TOLD[name] for name in rules["disclose"] if name not in untold) or "nothing else"
    defenses = ", then ".join(config["defense"]) if config["defense"] else "no defense"
    cheating = ", ".join(
        f"{name} ({100 * node['share']:g} % of them)" for name, node in (config.get("client") or {}).items()
    )
    norm = ", BatchNorm on the private batch's statistics" if rules.get("batch_norm") == "train" else ""
    if "secure_aggregation" in (config["defense"] or {}):
        defenses += ", so that the server sees only the exact sum over a round's clients"
    known = "which it knows" if config.get("threat", {}).get("knows_defense") else "which it was not told of"
    defenses += f" ({known})" if config["defense"] else ""
    audited = choices.get("audit", "none") != "none"
    if cheating or audited:
        start = (
            f"A server trains {choices['model']} on {choices['data']} with {clients} for {rounds}; each is "
            f"to answer with {reply}. Cheats among the clients: {cheating or 'none'}. "
        )
        if audited:
            rule = config["audit"]
            start += (
                "Every update comes with a sealed proof of learning; the server does the "
                f"{_intervals(rule)} again, and gives a rejected update the weight "
                f"{rule['rejected_weight']:g}."
            )
        else:
            start += "Nobody looks."
        return (
            start if choices["attack"] == "none" else f"{start} The server attacks with {choices['attack']}."
        )
    attacked = choices["attack"] != "none"
    return (
        f"A {'malicious ' if attacked else ''}server trains {choices['model']} on {choices['data']} with "
        f"{clients} for {rounds}; each client answers with {reply}{norm}, behind {defenses}, "
        f"and discloses {told}"
        + (f"; the server then attacks what it saw with {choices['attack']}." if attacked else ".")
    )


def _intervals(rule: Mapping[str, Any]) -> str:
    """Say which intervals of a claimed training are done again."""
    length = f"intervals of {rule['every']} step{'' if rule['every'] == 1 else 's'}"
    if rule["random"] is not None:
        return f"{rule['top']} largest and {rule['random']} random {length}"
    found = f"{100 * rule['detection']:g} %"
    return f"{rule['top']} largest {length}, and as many others as find a false one in {found} of cases,"


def batch_size(asked: int, sizes: Collection[int]) -> str:
    """Say how many examples batches hold: as seen, or as asked for where none was."""
    if not sizes:
        return str(asked)
    least, most = min(sizes), max(sizes)
    seen = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return f"{seen} examples" + (f" ({asked:,} were asked for)" if asked > most else "")


def _tapped_model(config: dict[str, Any]) -> str:
    """Say in some sentences what was tapped, and what the attack knew."""
    tapped, choices = config["wiretap"], config["choices"]
    told = {
        "weights": "new weights, of which the update is kept",
        "update": "updates",
        "gradient": "gradients",
    }
    words = (
        f"A Flower app under {tapped['strategy']} was tapped; its clients answer with "
        f"{told[tapped['replies']]}. The model is {choices['model']}; buffers that were not sent are as its "
        "class makes them."
    )
    if beside := tapped.get("disclosed"):
        words += " The attacker was told " + ", ".join(f"{k} = {v}" for k, v in beside.items()) + "."
    return words if choices["attack"] == "none" else f"{words} It is attacked with {choices['attack']}."
