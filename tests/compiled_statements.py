"""Compiled SQL for all engines of a test process. Most tests open a new ledger, and compiling takes longer than asking.

SQLAlchemy keeps compiled statements for each engine. The engines of these tests differ only in their databases, so
they can share them.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.util import LRUCache


class _Statements(LRUCache[Any, Any]):
    """Compiled statements by everything that SQLAlchemy finds them by, except the dialect's identity."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[1:], value)


@cache
def _shared(dialect: type[sa.Dialect]) -> tuple[_Statements, WeakKeyDictionary[Any, Any]]:
    return _Statements(5_000), WeakKeyDictionary()


def share_compiled_statements() -> None:
    """Make later engines share compiled statements with their dialect, unless they have options of their own."""
    create_engine = sa.create_engine
    plain = {"hide_parameters", "connect_args", "pool_size", "max_overflow"}

    def create(url: Any, **options: Any) -> sa.Engine:
        engine = create_engine(url, **options)
        if options.keys() <= plain:
            engine._compiled_cache, engine.dialect._type_memos = _shared(type(engine.dialect))
        return engine

    sa.create_engine = create
