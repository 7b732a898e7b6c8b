"""Modules of a loaded model get subclasses of their classes: nothing of mlx-lm itself changes, and it can be undone."""

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final

Function = Callable[..., Any]

_ORIGINAL: Final = "bramley_original"


def subclass(kind: type, methods: Mapping[str, Any]) -> type:
    """A class like ``kind`` but for some methods; ``restore`` knows it."""
    return type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__, _ORIGINAL: kind})


def restore(model: Any) -> None:
    """Give every module of ``model`` the class it was loaded with."""
    for module in model.modules():
        while hasattr(type(module), _ORIGINAL):
            module.__class__ = getattr(type(module), _ORIGINAL)


def replace(model: Any, original: Function, replacement: Function) -> bool:
    """Have methods of modules that call the function ``original`` by its global name call ``replacement``.

    False when there are none. Their classes get copies of these methods, with a copy of the globals they see.
    """
    made: dict[type, type | None] = {}
    for module in model.modules():
        kind = type(module)
        if kind not in made:
            methods = _methods(kind, original, replacement)
            made[kind] = subclass(kind, methods) if methods else None
        fast = made[kind]
        if fast is not None:
            module.__class__ = fast
    return any(made.values())


def _methods(kind: type, original: Function, replacement: Function) -> dict[str, FunctionType]:
    """Methods of a class, own or inherited, that name ``original``, with ``replacement`` in its place."""
    methods: dict[str, FunctionType] = {}
    for name in dir(kind):
        method = getattr(kind, name)
        if isinstance(method, FunctionType):
            names = [word for word in method.__code__.co_names if method.__globals__.get(word) is original]
            if names:
                methods[name] = _with_globals(method, dict.fromkeys(names, replacement))
    return methods


def _with_globals(method: FunctionType, names: dict[str, Function]) -> FunctionType:
    seen = {**method.__globals__, **names}
    copy = FunctionType(method.__code__, seen, method.__name__, method.__defaults__, method.__closure__)
    copy.__kwdefaults__ = method.__kwdefaults__
    return copy
