"""The arguments of a client actor's call: small values are sent within it, large values as references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import ObjectRef

from actors.replies import RemoteValue
from actors.states import StateRef
from actors.store import Store
from actors.wire import ArgRef
from rayfed_ssl.federated.messages import Task, mapped


class Arguments:
    """The references that one call takes as arguments. A reference that occurs again is the same argument.

    Args:
        converted: the values of the task's message in the form that calls carry, by identity of the original. It is the
            same dict for every call of the task, so that each value is put into the store once.
    """

    def __init__(self, store: Store, converted: dict[int, Any]) -> None:
        self.refs: list[ObjectRef] = []
        self._store, self._converted = store, converted
        self._numbers: dict[ObjectRef, int] = {}

    def message(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that all clients of the task are sent, in the form that the call carries."""
        values = {}
        for name, value in fields.items():
            passed = mapped(value, self._passed_on)  # numbers this call's references, even where the value is known
            values[name] = self._converted.setdefault(id(value), passed)
        return self._referred(values, shared=True)

    def own(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of one client, in the form that the call carries."""
        return self._referred({name: mapped(value, self._passed_on) for name, value in fields.items()}, shared=False)

    def state(self, where: StateRef | None) -> ArgRef | None:
        """A client's state, in the form that the call carries."""
        return None if where is None else ArgRef(self._number(where.ref), where.index)

    def _referred(self, values: dict[str, Any], *, shared: bool) -> dict[str, Any]:
        """The values, with a reference in place of each large one."""
        for name, value in values.items():
            if (ref := self._store.reference(value, shared=shared)) is not None:
                values[name] = ArgRef(self._number(ref))
        return values

    def _passed_on(self, value: Any) -> Any:
        """The argument for a value that is already in the store."""
        return ArgRef(self._number(value.source.ref), value.key) if isinstance(value, RemoteValue) else value

    def _number(self, ref: ObjectRef) -> int:
        """The position of a reference among the arguments; a new one comes last."""
        if ref not in self._numbers:
            self._numbers[ref] = len(self.refs)
            self.refs.append(ref)
        return self._numbers[ref]


class Packer:
    """Makes the arguments of calls, and knows which values of the current round are already in the store.

    Args:
        recent: how many values of single clients are remembered at a time.
    """

    def __init__(self, recent: int) -> None:
        self.store = Store(recent)
        self._task: Task | None = None
        self._converted: dict[int, Any] = {}  # of the task

    @property
    def empty(self) -> bool:
        """Whether no task's message is held."""
        return self._task is None and not self._converted

    def arguments(self, task: Task) -> Arguments:
        """The arguments of a new call, still empty."""
        if self._task is not task:  # the arguments of another task have other numbers
            self._task, self._converted = task, {}
        return Arguments(self.store, self._converted)

    def clear(self) -> None:
        """Forget the round's values and the task's message."""
        self.store.clear()
        self._task, self._converted = None, {}
