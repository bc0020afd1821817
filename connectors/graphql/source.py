"""
`graphql:` sources: a list in a GraphQL server's response, read as JSON.

A query that asks for `pageInfo` (GraphQL Cursor Connections Specification, 5) is repeated with the cursor of the next
page until there is no next page. The pages are fetched at different times, so rows may be repeated or missing if the
server's data changes in between. GraphQL servers do not offer snapshots.
"""

import base64
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import urlsplit

import msgspec
from graphql import (
    ArgumentNode,
    DocumentNode,
    FieldNode,
    GraphQLError,
    NameNode,
    OperationDefinitionNode,
    OperationType,
    StringValueNode,
    Visitor,
    parse,
    print_ast,
    visit,
)

from connectors.graphql.params import GraphqlParams
from connectors.origin import Origin
from datasources.errors import SourceError
from datasources.sources.format_detection import format_named
from datasources.sources.formats import FileFormat
from datasources.sources.scratch_files import ScratchSpace, too_large
from datasources.sources.source import Load, Source
from runtimeconf.file_formats import FileParams
from runtimeconf.model import DatasetConfig

#: The maximum size of a response, which is parsed as a whole.
_MAX_PAGE_BYTES = 16 * 1024 * 1024

#: Writes numbers with all digits.
_ENCODER = msgspec.json.Encoder(decimal_format="number")

#: For each paging direction: the argument, and the `pageInfo` fields for the cursor and for whether more pages follow.
_DIRECTIONS = (("after", "endCursor", "hasNextPage"), ("before", "startCursor", "hasPreviousPage"))


class _Paging(msgspec.Struct, frozen=True):
    """The position of `pageInfo` in a response, and the paging *direction*, one of `_DIRECTIONS`."""

    path: tuple[str, ...]
    direction: tuple[str, str, str]


class GraphqlSource(Source):
    """A list in the response to one query. Responses have no version."""

    def __init__(self, dataset: DatasetConfig, params: GraphqlParams) -> None:
        parts = urlsplit(dataset.location)
        self._origin, self._target = f"{parts.scheme}://{parts.netloc}", parts.path
        self._shown = dataset.from_
        self._params = params
        self._pointer = params.pointer

    @contextmanager
    def open(self, load: Load) -> Iterator[FileFormat]:
        """Request all pages; see `Source.open`."""
        document = self._document()
        paging = _paging_of(document)
        with ExitStack() as stack:
            space = ScratchSpace(load, stack)
            roots = self._params.graphql_tls_root_certificate_file
            with Origin(self._origin, self._shown, load.deadline, self._params.client_timeout, roots) as server:
                file = space.save(self._limited(self._lines(server, document, paging)), self._shown)
            if file.identity.size == 0:
                raise SourceError(f"'{self._shown}': the list at json_pointer is empty, so it has no columns.")
            yield format_named("ndjson")(
                [file], self._shown, space, FileParams(), compression="UNCOMPRESSED", version=None
            )

    def _document(self) -> DocumentNode:
        try:
            document = parse(self._params.graphql_query, max_tokens=10_000)
        except (GraphQLError, RecursionError) as exc:
            where = next((f", line {place.line}" for place in getattr(exc, "locations", None) or ()), "")
            raise SourceError(f"params.graphql_query{where}: it is not GraphQL.") from None
        operations = [node for node in document.definitions if isinstance(node, OperationDefinitionNode)]
        if len(operations) != 1 or operations[0].operation is not OperationType.QUERY:
            raise SourceError("params.graphql_query: it must be a single query, not a mutation or a subscription.")
        return document

    def _lines(self, server: Origin, document: DocumentNode, paging: _Paging | None) -> Iterator[bytes]:
        """Yield the rows, each as a line of JSON."""
        cursor: str | None = None
        while True:
            answer = self._asked(server, print_ast(_from(document, paging, cursor)))
            for row in self._rows(answer):
                yield self._line(row)
            if paging is None:
                return
            last, cursor = cursor, self._next(answer, paging)
            if cursor is None:
                return
            if cursor == last:
                raise SourceError(f"'{self._shown}': the server keeps returning the same page.")

    def _line(self, row: Mapping[str, Any]) -> bytes:
        try:
            return _ENCODER.encode(row) + b"\n"
        except UnicodeEncodeError:
            raise SourceError(f"'{self._shown}': the response contains invalid Unicode (a lone surrogate).") from None

    def _limited(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        left_bytes: float = self._params.max_download_size or math.inf
        for line in lines:
            left_bytes -= len(line)
            if left_bytes < 0:
                raise too_large(self._shown, "params.max_download_size")
            yield line

    def _asked(self, server: Origin, query: str) -> Any:
        """Return the response to *query*. Its errors may quote data, so they are not shown."""
        body = json.dumps({"query": query}).encode()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Accept": "application/graphql-response+json, application/json;q=0.9",
            "Accept-Encoding": "identity",
            "User-Agent": "dataset-loader",
            **_authorization(self._params),
        }
        with server.request(self._target, headers.items(), method="POST", body=body) as answer:
            status, content = answer.status, answer.beginning(_MAX_PAGE_BYTES + 1)
        if len(content) > _MAX_PAGE_BYTES:
            size = _MAX_PAGE_BYTES // (1024 * 1024)
            raise SourceError(f"'{self._shown}': a response has more than {size} MiB: request fewer rows at once.")
        if status in {401, 403}:
            raise SourceError(f"'{self._shown}': the server rejected the credentials (status {status}).")
        try:
            found = json.loads(content, parse_float=_exact, parse_constant=_exact, object_pairs_hook=self._once)
        except (ValueError, RecursionError):
            raise SourceError(f"'{self._shown}': the server does not respond with JSON (status {status}).") from None
        if not isinstance(found, dict) or found.get("errors") or status != 200:
            raise SourceError(
                f"'{self._shown}': the server rejected params.graphql_query, or part of it failed (status {status})."
            )
        return found

    def _once(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Refuse a repeated name, as in a JSON file."""
        made = dict(pairs)
        if len(made) < len(pairs):
            raise SourceError(f"'{self._shown}': an object in the response has the same name twice.")
        return made

    def _rows(self, answer: Any) -> Iterator[Mapping[str, Any]]:
        found = answer
        for part in self._pointer:
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            else:
                raise SourceError(f"'{self._shown}': the response has nothing at {self._params.json_pointer}.")
        for row in found if isinstance(found, list) else [found]:
            if not isinstance(row, dict):
                raise SourceError(
                    f"'{self._shown}': the value at {self._params.json_pointer} is not a list of objects."
                )
            yield self._unnested(row, self._params.unnest_depth)

    def _unnested(self, row: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """Return *row* with nested objects replaced by their fields, *depth* levels deep."""
        flat: dict[str, Any] = {}
        for name, value in row.items():
            inner = self._unnested(value, depth - 1) if depth and isinstance(value, dict) else {name: value}
            if twice := inner.keys() & flat.keys():
                raise SourceError(
                    f"'{self._shown}': two fields are named {min(twice)!r} after objects are unnested: "
                    "give one an alias in params.graphql_query."
                )
            flat |= inner
        return flat

    def _next(self, answer: Any, paging: _Paging) -> str | None:
        """Return the cursor of the next page; None if *answer* is the last page."""
        _, cursor, is_more = paging.direction
        found = answer
        for name in paging.path:
            found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, dict) or not isinstance(found.get(is_more), bool):
            raise SourceError(f"'{self._shown}': the response lacks pageInfo.{is_more}.")
        if not found[is_more]:
            return None
        if not isinstance(found.get(cursor), str):
            raise SourceError(f"'{self._shown}': the response lacks pageInfo.{cursor}.")
        return str(found[cursor])


def _exact(text: str) -> Decimal:
    """Return a number with all digits. NaN and infinities are not valid JSON."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(text) from None
    if not value.is_finite():
        raise ValueError(text)
    return value


def _authorization(params: GraphqlParams) -> dict[str, str]:
    if params.graphql_auth_token is not None:
        return {"Authorization": f"Bearer {params.graphql_auth_token}"}
    if params.graphql_auth_user is not None:
        pair = f"{params.graphql_auth_user}:{params.graphql_auth_pass}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}


def _paging_of(document: DocumentNode) -> _Paging | None:
    """
    Return how the responses to *document* are paged; None if they are not.

    Raises:
        SourceError: Several fields are paged, or `pageInfo` lacks a field.
    """
    found = list(_connections(document))
    if len(found) != _count(document):
        raise SourceError("params.graphql_query: pageInfo must not have an alias or be in a fragment.")
    if not found:
        return None
    if len(found) > 1:
        raise SourceError("params.graphql_query: it requests pageInfo for more than one field.")
    ((path, names),) = found
    for direction in _DIRECTIONS:
        if names >= set(direction[1:]):
            return _Paging(("data", *path, "pageInfo"), direction)
    raise SourceError("params.graphql_query: pageInfo needs endCursor and hasNextPage.")


def _connections(document: DocumentNode) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Yield the response path of each paged field, and the names of its `pageInfo` fields."""
    (operation,) = (node for node in document.definitions if isinstance(node, OperationDefinitionNode))
    waiting: list[tuple[tuple[str, ...], Any]] = [((), operation)]
    while waiting:
        path, node = waiting.pop()
        for field in _fields(node):
            if field.name.value == "pageInfo" and field.alias is None:
                yield path, {inner.name.value for inner in _fields(field) if inner.alias is None}
            else:
                waiting.append(((*path, (field.alias or field.name).value), field))


def _count(document: DocumentNode) -> int:
    """Return how often *document* asks for `pageInfo`, at any level."""
    found = []

    class Count(Visitor):
        def enter_field(self, node: FieldNode, *_: object) -> None:
            if node.name.value == "pageInfo":
                found.append(node)

    visit(document, Count())
    return len(found)


def _fields(node: Any) -> list[FieldNode]:
    selections = node.selection_set.selections if node.selection_set is not None else ()
    return [selection for selection in selections if isinstance(selection, FieldNode)]


def _from(document: DocumentNode, paging: _Paging | None, cursor: str | None) -> DocumentNode:
    """Return *document* with the argument that requests the page at *cursor*; None means the first page."""
    if paging is None or cursor is None:
        return document
    name = paging.direction[0]
    argument = ArgumentNode(name=NameNode(value=name), value=StringValueNode(value=cursor))

    class AddArgument(Visitor):
        def leave_field(self, node: FieldNode, *_: object) -> FieldNode | None:
            if not any(field.name.value == "pageInfo" and field.alias is None for field in _fields(node)):
                return None
            others = [one for one in node.arguments or () if one.name.value != name]
            return FieldNode(
                name=node.name,
                alias=node.alias,
                directives=node.directives,
                selection_set=node.selection_set,
                arguments=(*others, argument),
            )

    changed: DocumentNode = visit(document, AddArgument())
    return changed
