"""The bounded cache: what it keeps and what it drops."""

from __future__ import annotations

from flexfa4.lru import LruCache


def test_what_was_used_longest_ago_is_dropped() -> None:
    cache: LruCache[str] = LruCache(2)
    cache.put(1, "a")
    cache.put(2, "b")
    assert cache.get(1) == "a"  # now 2 was used longest ago
    cache.put(3, "c")
    assert cache.get(2) is None
    assert cache.values() == ["a", "c"]


def test_a_value_takes_the_place_of_its_keys_old_one() -> None:
    cache: LruCache[str] = LruCache(2)
    cache.put(1, "a")
    cache.put(2, "b")
    cache.put(1, "c")
    assert cache.get(1) == "c"
    cache.put(3, "d")
    assert len(cache) == 2
    assert cache.get(2) is None
