"""The memory for answers keeps to its bytes, whatever is done with it."""

from collections import OrderedDict

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from queryengine.cache.results import Kept, Key, Remembered, ResultsCache, chunk_bytes, key_bytes

MAX_BYTES = 10_000
KEYS = st.builds(lambda number: ("json", f"SELECT {number}", None), st.integers(0, 12))


class Caching(RuleBasedStateMachine):
    """Beside the cache a list of what must be there, the next to go first."""

    rooms = Bundle("rooms")
    loans = Bundle("loans")

    def __init__(self) -> None:
        super().__init__()
        self.cache = ResultsCache(MAX_BYTES)
        self.kept: OrderedDict[Key, tuple[Remembered, int]] = OrderedDict()
        self.taken = 0
        self.lent: list[Kept] = []

    @property
    def out_bytes(self) -> int:
        """What is forgotten and lent: the same answer once, however many have it."""
        present = [answer for answer, _ in self.kept.values()]
        out = {id(kept): kept.size for kept in self.lent if not any(kept.answer is answer for answer in present)}
        return sum(out.values())

    @property
    def all_bytes(self) -> int:
        """What should count as used."""
        return self.taken + self.out_bytes + sum(size for _, size in self.kept.values())

    @rule(target=rooms, size=st.integers(1, 6000))
    def take(self, size: int) -> int:
        fits = self.cache.take_room(size)
        while self.kept and self.out_bytes + self.taken + size <= MAX_BYTES < self.all_bytes + size:
            self.kept.popitem(last=False)
        assert fits == (self.all_bytes + size <= MAX_BYTES)
        if not fits:
            return 0
        self.taken += size
        return size

    @rule(room=consumes(rooms))
    def give_back(self, room: int) -> None:
        self.cache.give_room_back(room)
        self.taken -= room

    @rule(room=consumes(rooms), key=KEYS)
    def keep(self, room: int, key: Key) -> None:
        answer = Remembered((b"x",), 1, room)
        self.cache.keep(key, answer, room)
        self.taken -= room
        self.kept.pop(key, None)
        self.kept[key] = (answer, room)

    @rule(key=KEYS)
    def get(self, key: Key) -> None:
        found = self.cache.get(key)
        assert (found and found.answer) is self.kept.get(key, (None, 0))[0]
        if found is not None:
            self.kept.move_to_end(key)

    @rule(target=loans, key=KEYS)
    def lend(self, key: Key) -> Kept | None:
        found = self.cache.get(key)
        if found is not None:
            self.kept.move_to_end(key)
            self.cache.lend(found)
            self.lent.append(found)
        return found

    @rule(loan=consumes(loans))
    def end_loan(self, loan: Kept | None) -> None:
        if loan is not None:
            self.cache.give_back(loan)
            self.lent.remove(loan)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.kept.clear()

    @invariant()
    def it_keeps_to_its_bytes(self) -> None:
        assert self.cache.used_bytes == self.all_bytes
        assert self.cache.used_bytes <= MAX_BYTES
        assert self.cache._answers.keys() == self.kept.keys()


TestCaching = Caching.TestCase


def test_what_an_answer_takes_is_more_than_its_bytes() -> None:
    key = ("json", "SELECT 1", '["é"]', None)

    assert key_bytes(key) > 600 + sum(map(len, key[:3]))
    assert chunk_bytes(b"x" * 100) > 100
    assert ResultsCache(8000).largest_bytes == 1000
