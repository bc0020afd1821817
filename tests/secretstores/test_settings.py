"""The settings of stores that are servers; no server is asked."""

from tests.corpus import each
from tests.runtimeconf.configurations import Faults

KINDS = "env, file, keyring, kubernetes:NAME, vault:PATH or aws_secrets_manager:NAME"
FROM = f"secrets[0].from: must be {KINDS}; found a string "
PARAMS = "secrets[0].params"


@each(
    ("source", "meant"),
    [
        (
            "hashicorp_vault:canary/a",
            "the store hashicorp_vault is called vault here: write vault: followed by the name of the secret, such",
        ),
        ("azure_keyvault:canary", "the store azure_keyvault is not supported: mount the secrets as files"),
        ("vault", "write vault: followed by the name of the secret, such as vault:secret/querykeep"),
        ("vault:canary", "write vault: followed by the name of the secret"),
        ("vault:canary/../a", "write vault: followed by the name of the secret"),
        ("vault:canary/a/..", "write vault: followed by the name of the secret"),
        ("vault:canary/a?b", "write vault: followed by the name of the secret"),
        ("aws_secrets_manager", "write aws_secrets_manager: followed by the name of the secret, such as"),
        ("valt:a/b", "did you mean vault?"),
    ],
)
def test_from_names_the_secret(faults: Faults, source: str, meant: str) -> None:
    (fault,) = faults(f"secrets: [{{from: '{source}', name: a}}]")

    assert f"{fault.yaml_path}: {fault.message}".startswith(f"{FROM}({meant}" if meant else FROM.rstrip())
    assert "canary" not in fault.message


@each(
    ("params", "expected"),
    [
        (
            "vault_addr: 'https://user@canary', vault_token_file: t",
            [".vault_addr: must be a URL such as https://vault.internal:8200, here or as VAULT_ADDR in the"],
        ),
        ("vault_addr: 'https://canary:x', vault_token_file: t", [".vault_addr: must be a URL such as"]),
        ("vault_token_file: t", [".vault_addr: must be a URL such as"]),
        (
            "vault_addr: 'http://canary:8200', vault_token_file: t",
            [".vault_addr: has no TLS, so the token and secrets would be sent unencrypted: write https://"],
        ),
        (
            "vault_addr: 'https://a'",
            [": lacks vault_token_file, or VAULT_TOKEN in the environment, which token authentication requires"],
        ),
        (
            "vault_addr: 'https://a', vault_auth: approle",
            [
                ": lacks vault_role_id, which approle authentication requires",
                ": lacks vault_secret_id_file, or VAULT_SECRET_ID in the environment, which approle",
            ],
        ),
        (
            "vault_addr: 'https://a', vault_auth: kubernetes",
            [": lacks vault_role, which kubernetes authentication requires"],
        ),
        (
            "vault_addr: 'https://a', vault_token_file: t, directory: canary",
            [".directory: is not a parameter of the store vault"],
        ),
        (
            "vault_addr: 'https://a', vault_token_file: t, vault_mount: ../canary",
            [".vault_mount: must be the path of an auth method; found a string"],
        ),
    ],
)
def test_a_vault_needs_an_address_and_a_login(faults: Faults, params: str, expected: list[str]) -> None:
    found = faults(f"secrets: [{{from: vault:a/b, name: a, params: {{{params}}}}}]")

    for fault, said in zip(found, expected, strict=True):
        assert f"{fault.yaml_path}: {fault.message}".startswith(PARAMS + said)
        assert "canary" not in fault.message
