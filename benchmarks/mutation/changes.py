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

from mutation.places import Place, lines, own, places

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
GUARD = 1e-8  # a constant below it keeps from dividing by zero, and any other would do


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change to one file."""

    path: Path
    line: int
    statement: range  # lines of the statement around it, without those of a body
    function: str  # that it is in; none: what runs on import, with the defaults of arguments
    text: str  # of its line
    what: str
    place: int  # of the node that changes, in the order of the file
    change: int  # of those that it may have

    def code(self) -> CodeType:
        """Return the file's code with this change."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        place = list(places(tree))[self.place]
        place.replace(list(_changes(place))[self.change])
        return compile(ast.fix_missing_locations(tree), str(self.path), "exec")


def mutants(path: Path) -> list[Mutant]:
    """Return every change to a file."""
    source = path.read_text(encoding="utf-8")
    tree, texts = ast.parse(source), source.splitlines()
    return [
        Mutant(
            path=path,
            line=place.node.lineno,
            statement=lines(place.around.statement),
            function=place.around.name,
            text=texts[place.node.lineno - 1].strip(),
            what=f"{_words(place.node)}  ->  {_words(replacement)}",
            place=number,
            change=change,
        )
        for number, place in enumerate(places(tree))
        for change, replacement in enumerate(_changes(place))
    ]


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
    elif place.around.keyword in ("dim", "axis") and isinstance(value, int):
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
    name = own(node.func)
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
    if name in LEFT_OUT and isinstance(node.func, ast.Attribute) and not _is_guard(node):
        of_library = own(node.func.value) in ("torch", "math", "np", "functional", "linalg")
        if not of_library:
            yield node.func.value
        elif node.args:
            yield node.args[0]


def _is_guard(node: ast.Call) -> bool:
    """Say whether a call keeps from dividing by zero, as .clamp(min=1e-30) does."""
    values = [keyword.value for keyword in node.keywords if keyword.arg == "min"]
    numbers = [value.value for value in values if isinstance(value, ast.Constant)]
    return any(isinstance(number, float) and 0 < number < GUARD for number in numbers)


def _return(place: Place) -> Iterator[ast.stmt]:
    node = place.node
    assert isinstance(node, ast.Return)
    if place.around.function is None or node.value is None or isinstance(node.value, ast.JoinedStr):
        return
    names = [
        argument.arg for argument in place.around.function.args.args if argument.arg not in ("self", "cls")
    ]
    if names and own(node.value) != names[0] and not isinstance(node.value, ast.Constant):
        yield ast.Return(value=ast.Name(id=names[0], ctx=ast.Load()))


def _removed(place: Place) -> Iterator[ast.stmt]:
    node = place.node
    if isinstance(node, ast.Assign):
        again = all(_assigned_before(place.around.function, target, node) for target in node.targets)
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
