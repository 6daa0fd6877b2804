"""The arguments of a client actor's call: small values are sent with it, large values as references."""

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
    """The references that one call takes as arguments. A reference that comes again is the same argument.

    Args:
        converted: the values of the task's message as calls have them, by identity of what they were made from. It is
            the same dict for every call of the task, so that each of them is put into the store once.
    """

    def __init__(self, store: Store, converted: dict[int, Any]) -> None:
        self.refs: list[ObjectRef] = []
        self._store, self._converted = store, converted
        self._numbers: dict[ObjectRef, int] = {}

    def message(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that all clients of the task are sent, as the call has them."""
        values = {}
        for name, value in fields.items():
            passed = mapped(value, self._passed_on)  # numbers this call's references, even where the value is known
            values[name] = self._converted.setdefault(id(value), passed)
        return self._referred(values, shared=True)

    def own(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of one client, as the call has them."""
        return self._referred({name: mapped(value, self._passed_on) for name, value in fields.items()}, shared=False)

    def state(self, where: StateRef | None) -> ArgRef | None:
        """A client's state, as the call has it."""
        return None if where is None else ArgRef(self._number(where.ref), where.index)

    def _referred(self, values: dict[str, Any], *, shared: bool) -> dict[str, Any]:
        """The values, with a reference for each that is large."""
        for name, value in values.items():
            if (ref := self._store.reference(value, shared=shared)) is not None:
                values[name] = ArgRef(self._number(ref))
        return values

    def _passed_on(self, value: Any) -> Any:
        """A value that lies in the store already, as the argument that it is."""
        return ArgRef(self._number(value.source.ref), value.key) if isinstance(value, RemoteValue) else value

    def _number(self, ref: ObjectRef) -> int:
        """The place of a reference among the arguments; one that is new comes last."""
        if ref not in self._numbers:
            self._numbers[ref] = len(self.refs)
            self.refs.append(ref)
        return self._numbers[ref]


class Packer:
    """Makes the arguments of calls, and knows what of the current round lies in the store already.

    Args:
        recent: how many values of single clients are known at a time.
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
        """The arguments of a new call, empty yet."""
        if self._task is not task:  # the arguments of another task have other numbers
            self._task, self._converted = task, {}
        return Arguments(self.store, self._converted)

    def clear(self) -> None:
        """Forget the round's values and the task's message."""
        self.store.clear()
        self._task, self._converted = None, {}
