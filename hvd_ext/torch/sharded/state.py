"""`optimizer.state` of a sharded optimizer: whole before a step, and in parts on ranks after it.

Forgetting or replacing state needs no other rank, and is supported. Reading it would need them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NoReturn

from hvd_ext.errors import UsageError

if TYPE_CHECKING:
    from hvd_ext.torch.sharded.shards import Shards

_NONE = object()


class ShardedState(MutableMapping[Any, Any]):
    """The state of each parameter; all ranks change it alike, as in any optimizer."""

    def __init__(self, whole: MutableMapping[Any, Any], shards: Shards) -> None:
        """Keep both without a copy.

        Args:
            whole: state of whole parameters, used where there is any.
            shards: the state of this rank's parts.
        """
        self._whole, self._shards = whole, shards

    def __contains__(self, key: object) -> bool:
        if key in self._whole:
            return True
        return _refuse() if self._shards.keep_state else False

    def __getitem__(self, key: Any) -> Any:
        if self._shards.keep_state and key not in self._whole:
            _refuse()
        return self._whole[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._whole[key] = value

    def __delitem__(self, key: Any) -> None:
        self.pop(key)

    def __iter__(self) -> Iterator[Any]:
        return _refuse() if self._shards.keep_state else iter(self._whole)

    def __len__(self) -> int:
        return _refuse() if self._shards.keep_state else len(self._whole)

    def get(self, key: Any, default: Any = None) -> Any:
        """Get the state without making any for a parameter that has none."""
        return self._whole[key] if key in self else default

    def setdefault(self, key: Any, default: Any = None) -> Any:
        return self._whole[key] if key in self else self._whole.setdefault(key, default)

    def pop(self, key: Any, default: Any = _NONE) -> Any:
        """Forget a parameter's state; if ranks have parts of it, the old state cannot be read."""
        forgotten = self._shards.keep_state and self._shards.forget(key)
        if key in self._whole:
            return self._whole.pop(key)
        if forgotten:
            return _InParts()
        if default is _NONE:
            raise KeyError(key)
        return default

    def clear(self) -> None:
        """Forget all state."""
        self._whole.clear()
        self._shards.forget_state()


class _InParts(Mapping[str, Any]):
    """Refuse to read the state of a parameter."""

    def __getitem__(self, key: str) -> NoReturn:
        _refuse()

    def __iter__(self) -> NoReturn:
        _refuse()

    def __len__(self) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise UsageError(
        "sharded=True: optimizer.state cannot be read after a step, as each rank has a part of it: "
        "call optimizer.state_dict() on all ranks, and load_state_dict() to change it"
    )
