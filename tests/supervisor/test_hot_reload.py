"""Which statements of the former configuration may run in the one that took its place."""

from collections.abc import Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path

from authkeys.access import Access
from authkeys.keys import KeySet
from queryengine.engine import Query
from runtimeconf.model import NamedKey, RuntimeConfig, Scope
from supervisor.hot_reload import Serving

SALT = b"s" * 32
NARROW, WIDE = Scope(relations=frozenset({"v"})), Scope(relations=frozenset({"v", "w"}))


def key_set(scopes: Mapping[str, Scope | None]) -> KeySet:
    named = [
        NamedKey(
            name=one,
            sha256=sha256(one.encode()).digest(),
            scope=scope,
            rights=frozenset({"refresh" if one == "ops" else "query"}),
        )
        for one, scope in scopes.items()
    ]
    return KeySet([], SALT, named)


def test_a_statement_runs_only_if_its_key_has_the_same_scope(tmp_path: Path) -> None:
    former = key_set({"same": NARROW, "wider": NARROW, "gone": WIDE, "whole": None, "limited": None, "ops": None})
    access = Access(key_set=key_set({"same": NARROW, "wider": WIDE, "whole": None, "limited": NARROW, "ops": None}))
    config = RuntimeConfig(file=tmp_path / "runtime.yaml", state_dir=tmp_path)
    with closing(Serving(config, access)) as serving:
        accepted = [
            one.name
            for one in former.principals()
            if serving.accepts(Query(sql="FROM v", fingerprint=one.fingerprint, scope=one.scope))
        ]
    with closing(Serving(config, Access(key_set=None))) as serving:
        assert serving.accepts(Query(sql="FROM v"))
        assert not serving.accepts(Query(sql="FROM v", scope=NARROW))

    assert accepted == ["same", "whole"]
