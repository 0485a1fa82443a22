"""From a config's node to the object that it names; what is wrong with it is said with the group's name."""

import inspect
from typing import Any, TypeVar

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from fedsim.core.errors import FedsimError, suggestion

Kind = TypeVar("Kind")


def members(nodes: DictConfig | None, kind: type[Kind], group: str) -> tuple[Kind, ...]:
    """Build the members of a group that composes: {name: {_target_: ...}, ...}, in order."""
    named = {} if nodes is None else {str(name): node for name, node in nodes.items()}
    return tuple(of_type(instance(node, f"{group}.{name}"), kind, group) for name, node in named.items())


def of_type(value: Any, kind: type[Kind], group: str) -> Kind:
    """Return a value that is of this kind, or complain."""
    if not isinstance(value, kind):
        raise FedsimError(f"{group}: expected a {kind.__name__}, got {type(value).__name__}")
    return value


def instance(node: DictConfig, group: str, *arguments: Any) -> Any:
    """Call the node's target; its own complaints come out as they are, the rest with the group's name."""
    if not isinstance(node, DictConfig) or "_target_" not in node:
        hint = f" Remedy: begin its yaml with '# @package {group}'." if "." in group else ""
        raise FedsimError(f"{group}: expected a config with a _target_, got {node!r}.{hint}")
    try:
        call = instantiate(node, _partial_=True, _convert_="all")
        parameters = inspect.signature(call.func).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        if not takes_any and (unknown := set(call.keywords) - set(parameters)):
            near = suggestion(min(unknown), parameters)
            raise FedsimError(f"{group}: {node._target_} takes no argument {min(unknown)!r}.{near}")
        return call(*arguments)
    except (InstantiationException, TypeError) as error:
        if isinstance(error.__cause__, FedsimError):  # from a target nested in this one
            raise error.__cause__ from None
        raise FedsimError(f"{group}: {error}") from error
