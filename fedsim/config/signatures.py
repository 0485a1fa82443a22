"""What source tells of the settings of a class or function: type, what is allowed, meaning."""

import ast
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedsim.config.catalog import source, syntax
from fedsim.core import settings
from fedsim.core.errors import FedsimError

CHECKS = ("whole", "number", "seconds", "switch", "one_of", "word", "listed", "optional")


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Settings of a class or function, by name."""

    module: str
    summary: str
    types: Mapping[str, str]
    meanings: Mapping[str, str]


@functools.cache
def signature(target: str) -> Signature:
    """Read the keyword arguments of `module.Class` or `module.function`."""
    module, _, name = target.rpartition(".")
    node = _definition(module, name)
    summary = (ast.get_docstring(node) or "").partition("\n")[0]
    if isinstance(node, ast.FunctionDef):
        return _of_function(node, module, summary)
    if constructor := _constructor(node):
        return _of_function(constructor, module, summary)
    if fields := _fields(node):
        return Signature(
            module=module, summary=summary, types=fields, meanings=_side_comments(module, fields)
        )
    if node.bases and "." in (base := _home(module, ast.unparse(node.bases[0]))):
        return replace(signature(base), summary=summary)
    return Signature(module=module, summary=summary, types={}, meanings={})


def _of_function(node: ast.FunctionDef, module: str, summary: str) -> Signature:
    arguments = (*node.args.args, *node.args.kwonlyargs)
    types = {each.arg: ast.unparse(each.annotation) for each in arguments if each.annotation}
    text = " ".join((ast.get_docstring(node) or "").split())
    return Signature(module=module, summary=summary, types=types, meanings=_explained(text, types))


def allowed(key: str, modules: Collection[str]) -> str:
    """Return what a setting may be, in the words of the error that refuses anything else; empty: unknown."""
    name = key.rpartition(".")[2]
    for module in modules:
        for written, call, bound in _checks(module):
            if written == key or (written.rpartition(".")[2] == name and len(modules) == 1):
                return _expectation(module, call, bound)
    for module in modules:  # what it hands on to a neighbour, such as the name of an activation
        for neighbour in _neighbours(module):
            for written, call, bound in _checks(neighbour):
                if written == key:
                    return _expectation(neighbour, call, bound)
    return ""


def _expectation(module: str, call: ast.Call, bound: Mapping[str, Any]) -> str:
    """Call a check with a value that no check lets pass."""
    outer, arguments = [_called(call)], list(call.args)
    if outer == ["optional"]:
        outer.append(ast.unparse(arguments.pop(0)).rpartition(".")[2])
    if "seconds" in outer:
        return "null or a positive number"
    rules = [_constant(module, each, bound) for each in arguments[2:]]
    limits = {each.arg: _constant(module, each.value, bound) for each in call.keywords if each.arg}
    if outer[-1] in ("listed", "one_of") and rules[0] is None:
        return ""  # built of what only running the module would tell
    try:
        check, *inner = [getattr(settings, name) for name in outer]
        check(*inner, "it", object(), *rules, **limits)
    except FedsimError as error:
        return re.sub(r"^it: expected |, got <object .*$", "", str(error))
    return ""


def _constant(module: str, node: ast.expr, bound: Mapping[str, Any]) -> Any:
    """Return the value of an expression that is written out, or of a name that stands for one."""
    if isinstance(node, ast.Name) and node.id in bound:
        return bound[node.id]
    if isinstance(node, ast.Name) and node.id in CHECKS:
        return getattr(settings, node.id)
    if isinstance(node, ast.Name):
        for statement in syntax(module).body:
            if isinstance(statement, ast.Assign) and node.id in map(ast.unparse, statement.targets):
                return _constant(module, statement.value, bound)
            if isinstance(statement, ast.AnnAssign) and node.id == ast.unparse(statement.target):
                return statement.value and _constant(module, statement.value, bound)
            if isinstance(statement, ast.ImportFrom) and statement.module:
                for alias in statement.names:
                    if (alias.asname or alias.name) == node.id and statement.module.startswith("fedsim"):
                        return _constant(statement.module, ast.Name(id=alias.name), {})
        return None  # a local value: what is checked
    if isinstance(node, ast.Dict):
        return tuple(_constant(module, key, bound) for key in node.keys if key is not None)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return tuple(_constant(module, each, bound) for each in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


@functools.cache
def _checks(module: str) -> tuple[tuple[str, ast.Call, Mapping[str, Any]], ...]:
    """Return every checked setting of a module: its key, the call, and the loop variables of the place."""
    return tuple(_checks_in(syntax(module), {}))


def _checks_in(node: ast.AST, bound: Mapping[str, Any]) -> Iterator[tuple[str, ast.Call, Mapping[str, Any]]]:
    if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Tuple):
        for item in node.iter.elts:
            if isinstance(item, ast.Constant):
                for statement in node.body:
                    yield from _checks_in(statement, {**bound, node.target.id: item.value})
        return
    if isinstance(node, ast.Call) and _called(node) in CHECKS:
        first = node.args[1:2] if _called(node) == "optional" else node.args[:1]
        if first and (key := _text(first[0], bound)):
            yield key, node, bound
    for child in ast.iter_child_nodes(node):
        yield from _checks_in(child, bound)


def _text(node: ast.expr, bound: Mapping[str, Any]) -> str:
    """Return a key as it is written, with the loop's variable put in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(bound.get(ast.unparse(part.value), "*"))
            if isinstance(part, ast.FormattedValue)
            else _text(part, bound)
            for part in node.values
        )
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _constructor(node: ast.AST) -> ast.FunctionDef | None:
    inside = node.body if isinstance(node, ast.ClassDef) else []
    return next(
        (each for each in inside if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None
    )


def _fields(node: ast.ClassDef) -> dict[str, str]:
    """Return the fields of a dataclass with their types."""
    if not any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        return {}
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    return {ast.unparse(each.target): ast.unparse(each.annotation) for each in fields}


def _side_comments(module: str, fields: Collection[str]) -> dict[str, str]:
    found = re.findall(r"^    (\w+): .*?  # (.+)$", source(module), re.MULTILINE)
    return {name: comment for name, comment in found if name in fields}


def _explained(text: str, names: Collection[str]) -> dict[str, str]:
    """Take a docstring apart where it says `name: what it is`; `one, other: ...` explains both."""
    one = "|".join(map(re.escape, names))
    if not one:
        return {}
    parts = re.split(rf"(?:^|(?<=[.;:] ))((?:{one})(?:, (?:{one}))*): ", text)
    found = zip(parts[1::2], parts[2::2], strict=True)
    return {name: said.strip().rstrip(".;") for heads, said in found for name in heads.split(", ")}


def _definition(module: str, name: str) -> ast.ClassDef | ast.FunctionDef:
    for node in syntax(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    raise FedsimError(f"{module}.{name}: no such class or function")


def _home(module: str, name: str) -> str:
    """Return where a name of a module is defined, in full; the name itself if that is not in fedsim."""
    for node in syntax(module).body:
        if isinstance(node, ast.ImportFrom) and node.module and name in [each.name for each in node.names]:
            return f"{node.module}.{name}" if node.module.startswith("fedsim") else name
    return f"{module}.{name}"


def _neighbours(module: str) -> list[str]:
    found = [node.module for node in syntax(module).body if isinstance(node, ast.ImportFrom) and node.module]
    return [each for each in found if each.startswith("fedsim.") and each != settings.__name__]
