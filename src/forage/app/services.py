"""`@service`: a class or function that can also run in executors.

The decorated object stays what it is, so it works here as if it weren't decorated, can be
subclassed and pickles by its name; it only gains `remote` and `options`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from forage.app.futures import CallFuture
from forage.app.options import MethodOptions, ServiceOptions
from forage.app.runtime import current
from forage.app.session import RESERVED, Session, method_of

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])

CALL = "__call__"
"""The one method of a function's session."""

_METHOD_OPTIONS = "__forage_method__"


class ServiceClass(Protocol[T_co]):
    """What type checkers see of a decorated class."""

    def __call__(self, *args: Any, **kwargs: Any) -> T_co:
        """Construct an object here."""

    def remote(self, *args: Any, **kwargs: Any) -> Session:
        """Open a session; the arguments go to the constructor, in each executor."""

    def options(self, **changes: Any) -> ServiceClass[T_co]:
        """The same service with other options; see `ServiceOptions`."""


class ServiceFunction(Protocol[P, T]):
    """What type checkers see of a decorated function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it here."""

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> CallFuture[T]:
        """Call it in an executor."""

    def options(self, **changes: Any) -> ServiceFunction[P, T]:
        """The same service with other options; see `ServiceOptions`."""


class Service(Generic[T]):
    """A class or function together with options: what `.options(...)` returns."""

    def __init__(self, target: Callable[..., T], options: ServiceOptions) -> None:
        self.target = target
        self.service_options = options

    @property
    def name(self) -> str:
        """The name of the class or function."""
        return self.target.__name__

    @property
    def is_class(self) -> bool:
        """Whether sessions hold objects."""
        return isinstance(self.target, type)

    @property
    def key(self) -> tuple[str, str, ServiceOptions]:
        """What makes two uses of a function the same: its definition and its options."""
        return self.target.__module__, self.target.__qualname__, self.service_options

    @property
    def methods(self) -> dict[str, MethodOptions]:
        """The methods that a session has, with the options given at their definition."""
        if not self.is_class:
            return {CALL: MethodOptions()}
        return {
            name: getattr(member, _METHOD_OPTIONS, MethodOptions())
            for name, member in inspect.getmembers(self.target, callable)
            if not name.startswith("_") and name not in RESERVED
        }

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        """Construct or call it here."""
        return self.target(*args, **kwargs)

    def options(self, **changes: Any) -> Service[T]:
        """The same service with other options."""
        return Service(self.target, self.service_options.but(changes))

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Open a session on a class, or call a function in its session."""
        runtime = current()
        if self.is_class:
            # A session opens with what its objects are made of: futures are waited for.
            given = tuple(_value(argument) for argument in args)
            named = {name: _value(argument) for name, argument in kwargs.items()}
            return self._handle(runtime.open(self, given, named))
        session = self._handle(runtime.function_session(self))
        return method_of(session, CALL).remote(*args, **kwargs)

    def _handle(self, session: str) -> Session:
        options = self.service_options
        defaults = MethodOptions(
            timeout=options.timeout, retries=options.retries if options.autoscale else 0
        )
        methods = {name: own.over(defaults) for name, own in self.methods.items()}
        return Session(session, self.name, not options.autoscale, methods)


def _value(argument: Any) -> Any:
    return argument.result() if isinstance(argument, Future) else argument


class _Attached:
    """`remote` and `options` of a decorated class; a subclass's own ones open the subclass."""

    def __init__(self, name: str, options: ServiceOptions) -> None:
        self._name = name
        self._options = options

    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is not None:
            raise AttributeError(f"{self._name} belongs to the class {owner.__name__}")
        return getattr(Service(owner, self._options), self._name)


@overload
def service(target: type[T], /) -> ServiceClass[T]: ...  # type: ignore[overload-overlap]
@overload
def service(target: Callable[P, T], /) -> ServiceFunction[P, T]: ...
@overload
def service(**options: Any) -> _Decorator: ...
def service(target: Any = None, /, **options: Any) -> Any:
    """Declare a class or function as a service.

    Used plainly (`@service`) or with options (`@service(resreq="cpu=2,gpu=1", warmup=4)`); see
    `ServiceOptions` for what they mean.

    Raises:
        TypeError: not a class or function, an unknown option, or a method with a reserved name.
        ValueError: an option has an impossible value.
    """
    checked = ServiceOptions().but(options)
    if target is None:
        return lambda it: _declare(it, checked)
    return _declare(target, checked)


class _Decorator(Protocol):
    @overload
    def __call__(self, target: type[T], /) -> ServiceClass[T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, T], /) -> ServiceFunction[P, T]: ...


def method(*, timeout: float | None = None, retries: int | None = None) -> Callable[[F], F]:
    """Give a method of a service class its own call options; see `MethodOptions`."""
    options = MethodOptions(timeout=timeout, retries=retries)

    def decorate(function: F) -> F:
        setattr(function, _METHOD_OPTIONS, options)
        return function

    return decorate


def _declare(target: Any, options: ServiceOptions) -> Any:
    if isinstance(target, type):
        _check_names(target)
        for name in ("remote", "options"):
            setattr(target, name, _Attached(name, options))
    elif inspect.isfunction(target):
        if not options.autoscale:
            raise ValueError(f"{target.__name__}: a function can't be a gang; use a class")
        declared = Service(target, options)
        function = cast(Any, target)
        function.remote, function.options = declared.remote, declared.options
    else:
        raise TypeError(f"a service is a class or a function, not {target!r}")
    return target


def _check_names(target: type) -> None:
    for name in sorted(RESERVED):
        member = getattr(target, name, None)
        if callable(member) and not isinstance(inspect.getattr_static(target, name), _Attached):
            raise TypeError(
                f"{target.__name__}.{name}: the name is reserved for sessions; rename it "
                f"(reserved: {', '.join(sorted(RESERVED))})"
            )
