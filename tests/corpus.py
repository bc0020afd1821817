"""Many cases in one test, which names each case that fails: for checks that take less time than a test by itself."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest

_PARAM: Final = type(pytest.param())
#: How many characters of a case and of its failure are shown.
_SHOWN: Final = 2000


def each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """
    Run a test for each of *cases*, which are written as for `pytest.mark.parametrize`, as one test.

    All cases share the fixtures, so each must leave them as they were.
    """
    words = names.split(",") if isinstance(names, str) else names
    of_case = [word.strip() for word in words]
    listed = [_values(case, len(of_case)) for case in cases]
    assert listed, "a corpus without a case"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        def every(**fixtures: Any) -> None:
            failures = []
            for values in listed:
                try:
                    test(**fixtures, **dict(zip(of_case, values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    if str(error).startswith("Timeout"):  # of pytest-timeout: no time is left for the others
                        raise
                    failures.append(f"{repr(values)[:_SHOWN]}\n    {type(error).__name__}: {str(error)[:_SHOWN]}")
            assert not failures, f"{len(failures)} of {len(listed)} cases failed:\n" + "\n".join(failures)

        given = inspect.signature(test)
        kept = [parameter for name, parameter in given.parameters.items() if name not in of_case]
        by_name = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in kept]
        vars(every).update(vars(test), __signature__=given.replace(parameters=by_name))
        every.__name__, every.__qualname__ = test.__name__, test.__qualname__
        every.__module__, every.__doc__ = test.__module__, test.__doc__
        return every

    return decorate


def _values(case: Any, count: int) -> tuple[Any, ...]:
    if isinstance(case, _PARAM):
        return tuple(case.values)
    return tuple(case) if count > 1 else (case,)
