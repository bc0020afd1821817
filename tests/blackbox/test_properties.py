"""No header value and no statement gives a 500 or a traceback; only configured texts are keys."""

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


@FEW
@given(value=HEADER_BYTES | NEAR_KEYS)
@pytest.mark.parametrize("header", ["X-API-Key", "Authorization"])
def test_a_key_that_opens_is_a_configured_text(serve: Server, header: str, value: bytes) -> None:
    sent = value if header == "X-API-Key" else b"Bearer " + value

    status = status_of(serve.raw(raw_request("POST", "/v1/sql", [(header, sent)], b"SELECT 1")))

    assert status in ({200} if value.strip(b" \t") in {K1.encode(), K2.encode()} else {400, 401})


VOCABULARY = """
SELECT FROM WHERE orders id name ( ) [ ] { } , . ; * + - / = 'x' "y" 1 2.5 NULL WITH AS x DELETE INSERT INTO VALUES
GROUP BY ORDER LIMIT UNION ALL PIVOT ON USING count sum read_csv query range CASE WHEN THEN END EXPLAIN ANALYZE
DESCRIBE SHOW TABLES SUMMARIZE information_schema.tables ? $1 $a :: INTEGER CAST lambda -> => /* */ -- $$ E'\'
"""
WORDS = st.lists(st.sampled_from([*VOCABULARY.split(), "\n"]), max_size=25).map(lambda words: " ".join(words).encode())
TEXTS = st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))


@FEW
@given(body=WORDS | TEXTS | st.binary(max_size=200))
def test_any_body_gives_an_answer(serve: Server, body: bytes) -> None:
    answer = serve.sql(body)

    assert answer.status_code in {200, 400, 403}, answer.text
    assert "Traceback" not in answer.text
    assert serve.process.poll() is None
