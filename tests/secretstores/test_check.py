"""What `manage.py check` finds in a store that is a server."""

from pathlib import Path

import pytest

from tests.runtime_site.test_check import KEYS, _forget, checked
from tests.secretstores.vault_server import TOKEN, vault_server
from tests.system.harness import K1

__all__ = ["_forget"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_server_of_secrets_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, answers: bool) -> None:
    monkeypatch.setenv("VAULT_TOKEN", TOKEN)
    with vault_server() as vault:
        vault.secrets["secret/querykeep"] = {"api_key" if answers else "other": K1}
        store = f"{{from: vault:secret/querykeep, name: vault, params: {{vault_addr: '{vault.url}'}}}}"
        keys = KEYS.replace(K1, "'${ vault:api_key }'")

        messages = checked(tmp_path, f"secrets: [{store}]\nruntime:\n{keys}")

        assert vault.asked == ["/v1/secret/data/querykeep"]
        assert [("E001" in message) for message in messages] == ([] if answers else [True])
