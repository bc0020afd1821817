"""No header value, body or path gives a 500, a traceback or an open server; only configured texts are keys."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.system.harness import K1, K2, Server, raw_request, status_of

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

#: What an HTTP header value may hold on the wire, and more.
HEADER_BYTES = st.binary(max_size=60).map(lambda b: b.replace(b"\r", b"").replace(b"\n", b""))
NEAR_KEYS = st.builds(
    lambda key, cut, more: key[:cut].encode() + more, st.sampled_from([K1, K2]), st.integers(0, 40), HEADER_BYTES
)


def without_ows(value: bytes) -> bytes:
    return value.strip(b" \t")


@FEW
@given(value=HEADER_BYTES | NEAR_KEYS)
@pytest.mark.parametrize("header", ["X-API-Key", "Authorization"])
def test_a_key_that_opens_is_a_configured_text(serve: Server, header: str, value: bytes) -> None:
    sent = value if header == "X-API-Key" else b"Bearer " + value

    status = status_of(serve.raw(raw_request("POST", "/v1/sql", [(header, sent)], b"SELECT 1")))

    if without_ows(value) in {K1.encode(), K2.encode()}:
        assert status == 200
    else:
        assert status in {400, 401}


@FEW
@given(body=st.binary(max_size=200) | st.text(max_size=200).map(lambda s: s.encode("utf-8", "surrogatepass")))
def test_any_body_gives_an_answer(serve: Server, body: bytes) -> None:
    answer = serve.sql(body)

    assert answer.status_code in {200, 400, 403, 504}
    assert "Traceback" not in answer.text


VOCABULARY = """
SELECT FROM WHERE orders id name ( ) [ ] { } , . ; * + - / = 'x' "y" 1 2.5 NULL WITH AS x DELETE INSERT INTO VALUES
GROUP BY ORDER LIMIT UNION ALL PIVOT ON USING count sum read_csv query range CASE WHEN THEN END EXPLAIN ANALYZE
DESCRIBE SHOW TABLES SUMMARIZE information_schema.tables ? $1 $a :: INTEGER CAST lambda -> => /* */ -- $$ E'\'
"""
WORDS = st.sampled_from([*VOCABULARY.split(), "\n"])


@FEW
@given(words=st.lists(WORDS, max_size=25))
def test_any_words_give_an_answer(serve: Server, words: list[str]) -> None:
    answer = serve.sql(" ".join(words))

    assert answer.status_code in {200, 400, 403}, answer.text
    assert serve.process.poll() is None


@FEW
@given(path=st.binary(min_size=1, max_size=30))
def test_any_path_is_closed(serve: Server, path: bytes) -> None:
    quoted = "/" + "".join(f"%{byte:02x}" for byte in path)

    status = status_of(serve.raw(raw_request("GET", quoted, [])))

    assert status == (200 if path in {b"health", b"v1/ready"} else 401)
