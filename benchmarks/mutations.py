"""Small deliberate faults of a Python file: every place where one fits, and the file with it."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_OPPOSITES = [
    ("min", "max"), ("amin", "amax"), ("minimum", "maximum"), ("argmin", "argmax"),
    ("floor", "ceil"), ("any", "all"), ("sin", "cos"), ("sum", "mean"), ("zeros", "ones"),
    ("zeros_like", "ones_like"),
]  # fmt: skip
_OPPOSITE = {name: other for pair in _OPPOSITES for name, other in (pair, pair[::-1])}
# Guards that change nothing in a right program, what this system does anyway, speed and looks.
_UNSEEN_KEYWORDS = {
    "strict", "encoding", "newline", "stacklevel", "exist_ok", "non_blocking", "indent",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A fault at one place.

    module: the file, relative to the package; function: the qualified name of the function that
    holds the place, or "" for code that runs at import
    start, end: the bytes of the file that `text` replaces
    """

    module: str
    function: str
    line: int
    before: str
    after: str
    start: int
    end: int
    text: str

    @property
    def key(self) -> str:
        """What stands for it in files; the same as long as its line is."""
        return f"{self.module} {self.function or '(import)'}: {self.before} => {self.after}"

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants_of(module: str, source: bytes) -> list[Mutant]:
    """All mutants of a file, each one once."""
    found = _Finder(module, source)
    found.visit(ast.parse(source))
    return list({mutant.key: mutant for mutant in found.mutants}.values())


class _Finder(ast.NodeVisitor):
    """Walks over the code that runs; messages, annotations, decorators and asserts are left out."""

    def __init__(self, module: str, source: bytes) -> None:
        self.module = module
        self.source = source
        self.mutants: list[Mutant] = []
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._names: list[str] = []
        self._in_function = False
        self._statement: ast.stmt | None = None

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.keyword) and node.arg in _UNSEEN_KEYWORDS:
            return
        if isinstance(node, ast.Raise):
            if "NotImplementedError" not in ast.unparse(node):
                self._replace(node, "pass")
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.stmt):
            outer, self._statement = self._statement, node
            self._visit_inner(node)
            self._statement = outer
        else:
            self._visit_inner(node)

    def _visit_inner(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            self._visit_named(node)
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.visit(node.value)
            return
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(
            node.test, ast.Compare | ast.UnaryOp | ast.Constant
        ):
            self._replace(node.test, f"(not ({ast.unparse(node.test)}))")
        for changed in _changes(node):
            self._replace(node, changed)
        self.generic_visit(node)

    def _visit_named(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        if isinstance(node, ast.FunctionDef):
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                self.visit(default)
        was_in_function = self._in_function
        self._names.append(node.name)
        if isinstance(node, ast.FunctionDef):
            self._names.append("<locals>")
            self._in_function = True
        for statement in node.body:
            self.visit(statement)
        self._in_function = was_in_function
        del self._names[-2 if isinstance(node, ast.FunctionDef) else -1 :]

    def _replace(self, node: ast.AST, text: str) -> None:
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword)
        start = self._place(node.lineno, node.col_offset)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        end = self._place(node.end_lineno, node.end_col_offset)
        statement = self._statement if self._statement is not None else node
        assert isinstance(statement, ast.stmt | ast.expr | ast.keyword)
        # The lines of the place itself, and of a short statement all of it.
        first, last = node.lineno, node.end_lineno
        if statement.end_lineno is not None and statement.end_lineno - statement.lineno < 4:
            first, last = statement.lineno, statement.end_lineno
        low, high = self._lines[first - 1], self._lines[last]
        before = self.source[low:high]
        after = self.source[low:start] + text.encode() + self.source[end:high]
        names = self._names if self._in_function else []
        if names and names[-1] == "<locals>":
            names = names[:-1]
        self.mutants.append(
            Mutant(
                module=self.module,
                function=".".join(names),
                line=node.lineno,
                before=_one_line(before),
                after=_one_line(after),
                start=start,
                end=end,
                text=text,
            )
        )

    def _place(self, line: int, column: int) -> int:
        return self._lines[line - 1] + column


def _one_line(code: bytes) -> str:
    return " ".join(code.decode().split())


def _changes(node: ast.AST) -> Iterator[str]:
    """What a node is replaced with, as text."""
    for kind, change in _CHANGES.items():
        if isinstance(node, kind):
            for changed in change(node):
                text = changed if isinstance(changed, str) else ast.unparse(changed)
                yield f"({text})" if isinstance(node, ast.expr) else text


def _compare(node: ast.Compare) -> Iterator[ast.expr]:
    for number, operator in enumerate(node.ops):
        changed = copy.deepcopy(node)
        changed.ops[number] = _COMPARISONS[type(operator)]()
        yield changed


def _calculation(node: ast.BinOp) -> Iterator[ast.expr]:
    texts = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    for side in (node.left, node.right):
        if isinstance(side, texts) or (isinstance(side, ast.Constant) and _is_text(side.value)):
            return
    if type(node.op) in _OPERATORS:
        changed = copy.deepcopy(node)
        changed.op = _OPERATORS[type(node.op)]()
        yield changed


def _is_text(value: object) -> bool:
    return isinstance(value, str | bytes)


def _augmented(node: ast.AugAssign) -> Iterator[ast.stmt | str]:
    if type(node.op) in _OPERATORS:
        changed = copy.deepcopy(node)
        changed.op = _OPERATORS[type(node.op)]()
        yield changed
    yield "pass"


def _logic(node: ast.BoolOp) -> Iterator[ast.expr]:
    changed = copy.deepcopy(node)
    changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield changed


def _sign(node: ast.UnaryOp) -> Iterator[ast.expr]:
    if isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand


def _constant(node: ast.Constant) -> Iterator[str]:
    value = node.value
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, int):
        yield str(value + 1)
        if value == 1:
            yield "0"
    elif isinstance(value, float):
        yield repr(value * 2 if value else 1.0)


def _return(node: ast.Return) -> Iterator[str]:
    if node.value is not None and not (
        isinstance(node.value, ast.Constant) and node.value.value is None
    ):
        yield "return None"


def _statement(node: ast.Expr) -> Iterator[str]:
    if not isinstance(node.value, ast.Constant | ast.Yield | ast.YieldFrom):
        yield "pass"


def _stored(node: ast.Assign) -> Iterator[str]:
    if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
        yield "pass"


def _jump(node: ast.Break | ast.Continue) -> Iterator[str]:
    yield "continue" if isinstance(node, ast.Break) else "break"


def _call(node: ast.Call) -> Iterator[ast.expr]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else None
    name = node.func.id if isinstance(node.func, ast.Name) else name
    if name in _OPPOSITE:
        changed = copy.deepcopy(node)
        if isinstance(changed.func, ast.Attribute):
            changed.func.attr = _OPPOSITE[name]
        elif isinstance(changed.func, ast.Name):
            changed.func.id = _OPPOSITE[name]
        yield changed
    for number, keyword in enumerate(node.keywords):
        if keyword.arg is not None and keyword.arg not in _UNSEEN_KEYWORDS:
            changed = copy.deepcopy(node)
            del changed.keywords[number]
            yield changed


_Kinds = type[ast.AST] | tuple[type[ast.AST], ...]
_CHANGES: dict[_Kinds, Callable[..., Iterator[ast.AST | str]]] = {
    ast.Compare: _compare,
    ast.BinOp: _calculation,
    ast.AugAssign: _augmented,
    ast.BoolOp: _logic,
    ast.UnaryOp: _sign,
    ast.Constant: _constant,
    ast.Return: _return,
    ast.Expr: _statement,
    ast.Assign: _stored,
    (ast.Break, ast.Continue): _jump,
    ast.Call: _call,
}  # fmt: skip
