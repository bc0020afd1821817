"""
Reads the bytes of text files: their first and last bytes, decompressed contents, and contents decoded to UTF-8.

The engine ignores gzip checksums and truncated zstd streams, and reads only some bytes of encodings other than UTF-8.
Therefore this module checks compression and decodes other encodings.
"""

import codecs
import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import chain
from typing import Any

from datasources.deadline import Deadline
from datasources.errors import SourceError
from datasources.sources.pinned_file import PinnedFile

#: The bytes of a text file that are searched for its header. The engine accepts lines of up to 2 MB.
HEAD_BYTES = 2 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024

#: Possible first bytes of a file, and the encoding that they indicate.
_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))

#: Bytes that latin-1 does not define but windows-1252 mostly does.
_NOT_LATIN_1 = re.compile(rb"[\x80-\x9f]")


def blocks(file: PinnedFile, compression: str, deadline: Deadline) -> Iterator[bytes]:
    """
    Yield the decompressed contents of *file*.

    Raises:
        SourceError: Its compression is damaged.
        SnapshotError: The deadline has passed.
    """
    with open(file.path, "rb") as raw:  # noqa: PTH123 - a descriptor's path
        stream: Any = raw
        if compression == "GZIP":
            stream = gzip.GzipFile(fileobj=raw)
        elif compression == "ZSTD":
            # Imported on first use because it uses memory that other loads do not need.
            arrow = import_module("pyarrow")
            stream = arrow.CompressedInputStream(arrow.PythonFile(raw, mode="r"), "zstd")
        try:
            while block := stream.read(_BLOCK_BYTES):
                deadline.check()
                yield block
        except (OSError, EOFError, zlib.error):
            if stream is raw:
                raise
            named = compression.lower()
            raise SourceError(
                f"'{file.shown}' is damaged: it was cut short, its checksum is wrong, or it is not {named}."
            ) from None


def ends(file: PinnedFile, compression: str, deadline: Deadline) -> tuple[bytes, bytes]:
    """
    Return the first bytes of a text file (at most `HEAD_BYTES`), and its last non-white-space byte.

    A UTF-8 byte order mark is left out. A compressed file is read to its end.

    Raises:
        SourceError: The file contains only white space, or its compression is damaged.
        SnapshotError: The deadline has passed.
    """
    is_plain = compression == "UNCOMPRESSED"
    head, last = _plain_ends(file, deadline) if is_plain else _compressed_ends(file, compression, deadline)
    if not last:
        raise SourceError(f"'{file.shown}' contains no data.")
    return head.removeprefix(codecs.BOM_UTF8), last


def _plain_ends(file: PinnedFile, deadline: Deadline) -> tuple[bytes, bytes]:
    head = os.pread(file.descriptor, HEAD_BYTES, 0)
    end = file.identity.size
    while end > 0:
        deadline.check()
        start = max(0, end - _BLOCK_BYTES)
        block = os.pread(file.descriptor, end - start, start).rstrip()
        if block:
            return head, block[-1:]
        end = start
    return head, b""


def _compressed_ends(file: PinnedFile, compression: str, deadline: Deadline) -> tuple[bytes, bytes]:
    head, last = b"", b""
    for block in blocks(file, compression, deadline):
        if len(head) < HEAD_BYTES:
            head += block
        last = block.rstrip()[-1:] or last
    return head[:HEAD_BYTES], last


def marked_encoding(beginning: bytes) -> str | None:
    """Return the encoding of the byte order mark at the *beginning* of a file; None if there is none."""
    return next((encoding for mark, encoding in _BYTE_ORDER_MARKS if beginning.startswith(mark)), None)


def decoded(contents: Iterable[bytes], encoding: str, shown: str) -> Iterator[bytes]:
    """
    Yield *contents*, encoded in *encoding*, as UTF-8 without a byte order mark. *shown* names the file in errors.

    Raises:
        SourceError: The contents are recognisably in another encoding.
    """
    rest = iter(contents)
    first = next(rest, b"")
    marked = marked_encoding(first)
    if marked not in {None, encoding}:
        raise _wrong(shown, 1, encoding, f": its byte order mark says {marked}")
    decoder = codecs.getincrementaldecoder(_codec(encoding, first, shown))()
    utf8 = codecs.getincrementaldecoder("utf-8")()
    may_be_utf8, is_ascii, line = encoding in {"latin-1", "windows-1252"}, True, 1
    for block, is_last in chain([(first, False)], ((block, False) for block in rest), [(b"", True)]):
        undefined = _NOT_LATIN_1.search(block) if encoding == "latin-1" else None
        if undefined is not None:
            place = line + block[: undefined.start()].count(b"\n")
            raise _wrong(shown, place, encoding, ", but perhaps utf-8 or windows-1252")
        try:
            text = decoder.decode(block, is_last)
        except UnicodeDecodeError as exc:
            raise _wrong(shown, line + exc.object[: exc.start].count(b"\n"), encoding) from None
        is_ascii = is_ascii and block.isascii()
        may_be_utf8 = may_be_utf8 and _continues(utf8, block, is_last=is_last)
        line += text.count("\n")
        yield text.removeprefix("\ufeff").encode() if block is first else text.encode()
    if may_be_utf8 and not is_ascii:
        raise _wrong(shown, None, encoding, " but utf-8")


def without_lines(contents: Iterable[bytes], lines: int, shown: str) -> Iterator[bytes]:
    """
    Yield *contents* without the first *lines*, which may contain anything. *shown* names the file in errors.

    Raises:
        SourceError: There are fewer lines, or they are longer than `HEAD_BYTES`.
    """
    rest = iter(contents)
    head = b""
    for block in rest:
        head += block
        if len(head) >= HEAD_BYTES:
            break
    skipped = re.match(rb"(?>[^\r\n]*+(?>\r\n|\r|\n)){%d}" % lines, head)
    if skipped is None:
        raise SourceError(f"'{shown}' has fewer lines than params.skip_rows, or they are longer than 2 MB.")
    yield head[skipped.end() :]
    yield from rest


def emptied(
    contents: Iterable[bytes], values: Iterable[str], delimiter: str, quote: str, escape: str
) -> Iterator[bytes]:
    """Yield *contents*, and empty the fields that equal one of *values*. The inside of other quoted fields is kept."""
    end, mark, special = (re.escape(character.encode()) for character in (delimiter, quote, escape))
    either = b"|".join(re.escape(value.encode()) for value in values)
    inside = b"(?:[^%b]++|%b)*+" % ((mark, mark * 2) if quote == escape else (mark + special, special + b"."))
    quoted = b"|%b%b(?:%b|(?P<open>\\Z))" % (mark, inside, mark) if quote else b"(?P<open>(?!))?"
    field = re.compile(
        b"(?:\\A|(?<=[\\r\\n])|(?<=%b))(?:(?P<null>%b)(?=%b|[\\r\\n]|\\Z)%b)" % (end, either, end, quoted), re.DOTALL
    )
    unfinished = b""  # The end of a line, or of a quoted field unless it is longer than the engine accepts.
    for block, is_last in chain(((block, False) for block in contents), [(b"", True)]):
        text, kept, at = unfinished + block, [], 0
        cut = len(text) if is_last else max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        for found in field.finditer(text, 0, cut):
            if found["null"] is not None:
                kept.append(text[at : found.start()])
                at = found.end()
            elif found["open"] is not None and len(text) - found.start() < HEAD_BYTES:
                cut = found.start()
        yield b"".join([*kept, text[at:cut]])
        unfinished = text[cut:]


def _codec(encoding: str, beginning: bytes, shown: str) -> str:
    """Return the name of the codec. Without a byte order mark, zero bytes indicate the UTF-16 byte order."""
    if encoding != "utf-16" or marked_encoding(beginning) is not None:
        return encoding
    zeros = {codec: beginning[start::2].count(0) for start, codec in ((1, "utf-16-le"), (0, "utf-16-be"))}
    if not any(zeros.values()):
        raise _wrong(shown, 1, encoding)
    return max(zeros, key=lambda codec: zeros[codec])


def _continues(decoder: codecs.IncrementalDecoder, block: bytes, *, is_last: bool) -> bool:
    try:
        decoder.decode(block, is_last)
    except UnicodeDecodeError:
        return False
    return True


def _wrong(shown: str, line: int | None, encoding: str, what: str = "") -> SourceError:
    place = f", line {line}" if line is not None else ""
    return SourceError(f"'{shown}'{place}: it is not {encoding}{what}: set params.encoding.")
