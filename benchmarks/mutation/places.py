"""Where in a file something may change, and where a change would concern nobody."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

SILENT = {"log", "warnings", "progress", "advance", "print"}  # whom nobody waits for
TIMERS = {"seconds", "started", "deadline", "perf_counter"}
MEMORY = {"ROOM", "CHUNK", "AT_ONCE"}  # how much is held at once: the outcome is the same
NO_CODE = ("annotation", "returns", "decorator_list", "type_params", "bases")


@dataclass(frozen=True, kw_only=True)
class Around:
    """What a node is in."""

    function: ast.FunctionDef | None = None
    statement: ast.stmt
    keyword: str = ""  # that it is the value of

    @property
    def name(self) -> str:
        """The function's; none: what runs on import."""
        return self.function.name if self.function else ""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A node that may change, where it hangs, and what is around it."""

    node: ast.expr | ast.stmt
    parent: ast.AST
    field: str
    number: int | None
    around: Around

    def replace(self, replacement: ast.AST) -> None:
        """Hang another node in its place."""
        if self.number is None:
            setattr(self.parent, self.field, replacement)
        else:
            getattr(self.parent, self.field)[self.number] = replacement


def places(tree: ast.Module) -> Iterator[Place]:
    """Return every node that may change."""
    yield from _below(tree, None)


def _below(node: ast.AST, around: Around | None) -> Iterator[Place]:
    for field, value in ast.iter_fields(node):
        several = isinstance(value, list)
        for number, child in enumerate(value if several else [value]):
            if field in NO_CODE or not isinstance(child, ast.AST) or _promises_nothing(child):
                continue
            if field == "kw_defaults" and _names(node, number) == "seed":  # which of all draws
                continue
            here = _entered(node, child, around)
            if isinstance(child, ast.expr | ast.stmt):
                spot = number if several else None
                yield Place(node=child, parent=node, field=field, number=spot, around=here)
            if not isinstance(child, ast.Raise):  # its text
                yield from _below(child, here)


def _entered(node: ast.AST, child: ast.AST, around: Around | None) -> Around:
    """Return what is around a child of a node. Defaults of arguments are not in the function."""
    function = around.function if around else None
    if isinstance(node, ast.FunctionDef) and not isinstance(child, ast.arguments):
        function = node
    if isinstance(child, ast.stmt):
        return Around(function=function, statement=child)
    assert around is not None  # whatever is no statement is in one
    keyword = child.arg or "" if isinstance(child, ast.keyword) else around.keyword
    return Around(function=function, statement=around.statement, keyword=keyword)


def _names(node: ast.AST, number: int) -> str:
    """Return the name of a keyword-only argument."""
    return node.kwonlyargs[number].arg if isinstance(node, ast.arguments) else ""


def lines(statement: ast.stmt) -> range:
    """Return the lines of a statement without those of its body."""
    body = getattr(statement, "body", None)
    end = body[0].lineno if body else (statement.end_lineno or statement.lineno) + 1
    return range(statement.lineno, max(end, statement.lineno + 1))


def _promises_nothing(node: ast.AST) -> bool:
    """Say whether a node is text for people, a timer, or there for types alone."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr | ast.arg | ast.alias):
        return True
    if isinstance(node, ast.keyword) and node.arg in TIMERS | {"strict"}:
        return True
    if isinstance(node, ast.Call) and own(node.func) in ("generator", "manual_seed", "default_rng"):
        return True
    if isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or root(node.value) in SILENT):
        return True
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        return bool(names & (MEMORY | {"__all__", "started"}))
    if isinstance(node, ast.expr):
        return any(
            isinstance(inner, ast.Name | ast.Attribute) and own(inner) in TIMERS for inner in _flat(node)
        )
    return isinstance(node, ast.If) and own(node.test) == "TYPE_CHECKING"


def _flat(node: ast.expr) -> list[ast.AST]:
    """A comparison's or sum's own parts: a timer there is what it is about."""
    return list(ast.walk(node)) if isinstance(node, ast.Compare | ast.BinOp) else [node]


def own(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def root(node: ast.expr) -> str:
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return own(node)
