"""Small changes to source that a test should notice, and those that nobody could.

Not generated, for they change nothing that is promised: docstrings, texts of errors and logs, annotations,
timers, `__all__`, decorators, imports, guards against division by zero, how much is held in memory at once,
which of all draws a generator gives, and `zip(strict=True)`, which is there for people.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

FLIPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SWAPS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
PAIRS = ("min max", "amin amax", "argmin argmax", "floor ceil", "sum mean", "any all", "zeros ones")
OTHER_NAME = {one: other for pair in PAIRS for one, other in (pair.split(), pair.split()[::-1])} | {
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
}
LEFT_OUT = {
    "abs",
    "sqrt",
    "square",
    "exp",
    "log",
    "sign",
    "clamp",
    "round",
    "floor",
    "flip",
    "softmax",
    "pinv",
}
SILENT = {"log", "warnings", "progress", "advance", "print"}  # whom nobody waits for
TIMERS = {"seconds", "started", "deadline", "perf_counter"}
MEMORY = {"ROOM", "CHUNK", "AT_ONCE"}  # how much is held at once: the outcome is the same
GUARD = 1e-8  # a constant below it keeps from dividing by zero, and any other would do


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change to one file."""

    path: Path
    line: int
    what: str
    place: int  # of the node that changes, in the order of the file
    change: int  # of those that it may have
    in_function: bool

    def code(self) -> CodeType:
        """Return the file's code with this change."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        place = list(_places(tree))[self.place]
        place.replace(list(_changes(place))[self.change])
        return compile(ast.fix_missing_locations(tree), str(self.path), "exec")


def mutants(path: Path) -> list[Mutant]:
    """Return every change to a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        Mutant(
            path=path,
            line=place.node.lineno,
            what=f"{_words(place.node)}  ->  {_words(replacement)}",
            place=number,
            change=change,
            in_function=place.function is not None,
        )
        for number, place in enumerate(_places(tree))
        for change, replacement in enumerate(_changes(place))
    ]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A node that may change, where it hangs, and the function around it."""

    node: ast.expr | ast.stmt
    parent: ast.AST
    field: str
    place: int | None
    function: ast.FunctionDef | None
    within: str  # name of the keyword that it is the value of, if any

    def replace(self, replacement: ast.AST) -> None:
        """Hang another node in its place."""
        if self.place is None:
            setattr(self.parent, self.field, replacement)
        else:
            getattr(self.parent, self.field)[self.place] = replacement


def _places(tree: ast.Module) -> Iterator[Place]:
    yield from _below(tree, None, "")


def _below(node: ast.AST, function: ast.FunctionDef | None, within: str) -> Iterator[Place]:
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        several = isinstance(value, list)
        for number, child in enumerate(value if several else [value]):
            if not isinstance(child, ast.AST) or _promises_nothing(child):
                continue
            keyword = child.arg or "" if isinstance(child, ast.keyword) else within
            inner = child if isinstance(child, ast.FunctionDef) else function
            if isinstance(child, ast.expr | ast.stmt):
                spot = number if several else None
                yield Place(
                    node=child, parent=node, field=field, place=spot, function=function, within=keyword
                )
            if not isinstance(child, ast.Raise):  # its text
                yield from _below(child, inner, keyword)


def _promises_nothing(node: ast.AST) -> bool:
    """Say whether a node is text for people, a timer, or there for types alone."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr | ast.arg | ast.alias):
        return True
    if isinstance(node, ast.keyword) and node.arg in TIMERS | {"strict"}:
        return True
    if isinstance(node, ast.Call) and _own(node.func) in ("generator", "manual_seed", "default_rng"):
        return True
    if isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or _root(node.value) in SILENT):
        return True
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        return bool(names & (MEMORY | {"__all__", "started"}))
    if isinstance(node, ast.expr):
        return any(
            isinstance(inner, ast.Name | ast.Attribute) and _own(inner) in TIMERS for inner in _flat(node)
        )
    return isinstance(node, ast.If) and _own(node.test) == "TYPE_CHECKING"


def _flat(node: ast.expr) -> list[ast.AST]:
    """A comparison's or sum's own parts: a timer there is what it is about."""
    return list(ast.walk(node)) if isinstance(node, ast.Compare | ast.BinOp) else [node]


def _own(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return _own(node)


def _words(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 70 else text[:67] + "..."


def _changes(place: Place) -> Iterator[ast.expr | ast.stmt]:
    for kind, change in KINDS:
        if isinstance(place.node, kind):
            yield from change(place)


def _compare(place: Place) -> Iterator[ast.expr]:
    node = place.node
    assert isinstance(node, ast.Compare)
    if len(node.ops) == 1 and type(node.ops[0]) in FLIPS:
        yield ast.Compare(left=node.left, ops=[FLIPS[type(node.ops[0])]()], comparators=node.comparators)


def _arithmetic(place: Place) -> Iterator[ast.expr]:
    node = place.node
    assert isinstance(node, ast.BinOp)
    texts = any(isinstance(side, ast.JoinedStr) or _is_text(side) for side in (node.left, node.right))
    if type(node.op) in SWAPS and not texts:
        yield ast.BinOp(left=node.left, op=SWAPS[type(node.op)](), right=node.right)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _constant(place: Place) -> Iterator[ast.expr]:
    node = place.node
    assert isinstance(node, ast.Constant)
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(value=not value)
    elif place.within in ("dim", "axis") and isinstance(value, int):
        yield ast.Constant(value=1 if value == 0 else 0)
    elif isinstance(value, int):
        yield ast.Constant(value=value + 1)
    elif isinstance(value, float) and not 0 < abs(value) < GUARD:
        yield ast.Constant(value=value * 2 if value else 1.0)


def _logic(place: Place) -> Iterator[ast.expr]:
    node = place.node
    if isinstance(node, ast.BoolOp):
        yield ast.BoolOp(op=ast.Or() if isinstance(node.op, ast.And) else ast.And(), values=node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand


def _choice(place: Place) -> Iterator[ast.expr | ast.stmt]:
    node = place.node
    assert isinstance(node, ast.If | ast.IfExp | ast.While)
    if not isinstance(node.test, ast.Compare) and not isinstance(node, ast.While):
        other = copy.copy(node)
        other.test = ast.UnaryOp(op=ast.Not(), operand=node.test)
        yield other


def _call(place: Place) -> Iterator[ast.expr]:
    node = place.node
    assert isinstance(node, ast.Call)
    name = _own(node.func)
    if name in OTHER_NAME:
        func = copy.copy(node.func)
        if isinstance(func, ast.Name):
            func.id = OTHER_NAME[name]
            known = name in ("min", "max", "any", "all")
        else:
            assert isinstance(func, ast.Attribute)
            func.attr, known = OTHER_NAME[name], True
        if known:
            yield ast.Call(func=func, args=node.args, keywords=node.keywords)
    if name in LEFT_OUT and isinstance(node.func, ast.Attribute):
        of_library = _own(node.func.value) in ("torch", "math", "np", "functional", "linalg")
        if not of_library:
            yield node.func.value
        elif node.args:
            yield node.args[0]


def _return(place: Place) -> Iterator[ast.stmt]:
    node = place.node
    assert isinstance(node, ast.Return)
    if place.function is None or node.value is None or isinstance(node.value, ast.JoinedStr):
        return
    names = [argument.arg for argument in place.function.args.args if argument.arg not in ("self", "cls")]
    if names and _own(node.value) != names[0] and not isinstance(node.value, ast.Constant):
        yield ast.Return(value=ast.Name(id=names[0], ctx=ast.Load()))


def _removed(place: Place) -> Iterator[ast.stmt]:
    node = place.node
    if isinstance(node, ast.Assign):
        again = all(_assigned_before(place.function, target, node) for target in node.targets)
        if not again:
            return
    yield ast.Pass()


def _assigned_before(function: ast.FunctionDef | None, target: ast.expr, node: ast.stmt) -> bool:
    """Say whether a target holds something without this statement: it was set before, or is a place."""
    if isinstance(target, ast.Subscript | ast.Attribute):
        return not (function is not None and function.name == "__init__")
    if function is None or not isinstance(target, ast.Name):
        return False
    arguments = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
    stores = (part for part in ast.walk(function) if isinstance(part, ast.Name))
    earlier = {part.id for part in stores if isinstance(part.ctx, ast.Store) and part.lineno < node.lineno}
    return target.id in arguments | earlier


KINDS: list[tuple[type | tuple[type, ...], Callable[[Place], Iterator[ast.expr | ast.stmt]]]] = [
    (ast.Compare, _compare),
    (ast.BinOp, _arithmetic),
    (ast.Constant, _constant),
    ((ast.BoolOp, ast.UnaryOp), _logic),
    ((ast.If, ast.IfExp, ast.While), _choice),
    (ast.Call, _call),
    (ast.Return, _return),
    ((ast.Expr, ast.AugAssign, ast.Assign, ast.Raise, ast.Continue, ast.Break), _removed),
]
