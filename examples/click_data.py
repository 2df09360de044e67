"""Generated click data with planted truth: 30 sparse features whose effect on the click probability is known.

Users have tastes over topics, items belong to topics; a click is likelier where they meet, at some hours, in some
slots, for some publishers, and so on. Labels are drawn from the resulting probability: its AUC is the best that any
model can reach, and a model that ignores the sparse features stays at 0.5.
"""

from __future__ import annotations

import numpy as np

from examples.schema import Bag, ClickData, Columns, Feature, take
from tfctr.profiling.auc import auc

USERS, ITEMS, TOPICS, HISTORY = 600, 500, 12, 10
GENDERS = ("female", "male", "unknown")
OCCUPATIONS = tuple(f"occupation {k}" for k in range(20))
CITIES = tuple(f"city {k}" for k in range(120))
SYSTEMS = ("android", "ios", "windows", "macos", "linux")
BRANDS = tuple(int(v) for v in np.random.default_rng(5).choice(10**9, 150, replace=False))
CROSSES = (("gender", "category_id"), ("hour", "slot"))
AGES = (18.0, 25.0, 35.0, 45.0, 55.0, 65.0)
PRICES = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)


def features() -> tuple[Feature, ...]:
    """The 30 sparse features."""
    return (
        Feature("user_id", "id", USERS, 16, wide=True),
        Feature("item_id", "id", ITEMS, 16, table="item", wide=True),
        Feature("category_id", "id", 60, 8, table="category", wide=True),
        Feature("advertiser_id", "id", 200, 8),
        Feature("campaign_id", "id", 600, 8),
        Feature("slot", "id", 12, 4, wide=True),
        Feature("hour", "id", 24, 4, wide=True),
        Feature("weekday", "id", 7, 4),
        Feature("network", "id", 5, 4),
        Feature("layout", "id", 9, 4),
        Feature("gender", "vocabulary", width=4, vocabulary=GENDERS),
        Feature("occupation", "vocabulary", width=6, vocabulary=OCCUPATIONS),
        Feature("city", "vocabulary", width=8, vocabulary=CITIES, wide=True),
        Feature("system", "vocabulary", width=4, vocabulary=SYSTEMS),
        Feature("brand", "integers", width=8, vocabulary=BRANDS),
        Feature("age", "buckets", width=4, boundaries=AGES),
        Feature("price", "buckets", width=4, boundaries=PRICES),
        Feature("device", "hashed", 400, 8),
        Feature("publisher", "hashed", 500, 8, wide=True),
        Feature("browser", "hashed", 60, 4),
        Feature("referrer", "hashed", 300, 6),
        Feature("user_tags", "bag", 240, 8, combiner="mean", table="tag", wide=True),
        Feature("item_tags", "bag", 240, 8, combiner="sqrtn", table="tag"),
        Feature("blocked_categories", "bag", 60, 6, combiner="sum"),
        Feature("interests", "weighted_bag", TOPICS * 4, 8, combiner="mean"),
        Feature("keywords", "weighted_bag", 300, 8, combiner="sum"),
        Feature("query", "hashed_bag", 800, 8, combiner="mean"),
        Feature("clicked_items", "sequence", ITEMS, 16, table="item"),
        Feature("clicked_categories", "sequence", 60, 8, table="category"),
        Feature("viewed_slots", "sequence", 12, 4),
    )


def generate(rows: int = 60_000, seed: int = 7) -> ClickData:
    """``rows`` impressions in order of time; the last 10 % are the test set."""
    rng = np.random.default_rng(seed)
    users, items = _users(rng), _items(rng)
    user, item = rng.integers(0, USERS, rows), _popular(rng, ITEMS - 1, rows) + 1
    columns, context = _columns(rng, users, items, user, item)
    probability = 1 / (1 + np.exp(-_logits(rng, users, items, user, item, columns, context)))
    labels = (rng.random(rows) < probability).astype(np.float32)
    split = rows - rows // 10
    test = np.arange(split, rows)
    return ClickData(
        name=f"generated clicks, {rows:,} impressions",
        features=features(),
        train=take(columns, np.arange(split)),
        train_labels=labels[:split],
        test=take(columns, test),
        test_labels=labels[split:],
        crosses=CROSSES,
        best_auc=auc(labels[test], probability[test]),
    )


def _popular(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    """Ids in [0, count) with a long tail."""
    weights = 1.0 / np.arange(3, count + 3) ** 0.9
    return np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(size)).clip(0, count - 1)


def _users(rng: np.random.Generator) -> dict[str, np.ndarray]:
    taste = rng.normal(size=(USERS, TOPICS))
    return {
        "taste": taste,
        "eagerness": rng.normal(0, 0.9, USERS),
        "top": np.argsort(-taste, 1)[:, :3],
        "gender": rng.integers(0, 3, USERS),
        "occupation": rng.integers(0, len(OCCUPATIONS), USERS),
        "city": _popular(rng, len(CITIES) + 10, USERS),  # the last ten are not in the vocabulary
        "age": rng.uniform(14, 75, USERS),
        "device": rng.integers(0, 250, USERS),
        "system": rng.integers(0, len(SYSTEMS) + 1, USERS),
    }


def _items(rng: np.random.Generator) -> dict[str, np.ndarray]:
    category = rng.integers(1, 60, ITEMS)
    return {
        "category": category,
        "topic": category % TOPICS,
        "quality": rng.normal(0, 0.8, ITEMS),
        "advertiser": rng.integers(0, 200, ITEMS),
        "campaign": rng.integers(0, 600, ITEMS),
        "brand": rng.integers(0, len(BRANDS) + 8, ITEMS),  # the last eight are not in the vocabulary
        "price": np.exp(rng.normal(3.2, 1.1, ITEMS)),
        "layout": rng.integers(0, 9, ITEMS),
    }


def _columns(
    rng: np.random.Generator,
    users: dict[str, np.ndarray],
    items: dict[str, np.ndarray],
    user: np.ndarray,
    item: np.ndarray,
) -> tuple[Columns, dict[str, np.ndarray]]:
    """All columns, and the facts that the labels need in another form."""
    rows = len(user)
    city, brand = np.array([*CITIES, *(f"village {k}" for k in range(10))], object), np.array([*BRANDS, *range(1, 9)])
    systems = np.array([*SYSTEMS, "other"], object)
    publisher, referrer = _popular(rng, 350, rows), _popular(rng, 150, rows)
    top = users["top"][user]
    columns: Columns = {
        "user_id": user,
        "item_id": item,
        "category_id": items["category"][item],
        "advertiser_id": items["advertiser"][item],
        "campaign_id": items["campaign"][item],
        "slot": rng.integers(1, 12, rows),
        "hour": rng.integers(0, 24, rows),
        "weekday": np.arange(rows) * 21 // rows % 7,
        "network": rng.integers(0, 5, rows),
        "layout": items["layout"][item],
        "gender": _text(np.array(GENDERS, object)[users["gender"][user]]),
        "occupation": _text(np.array(OCCUPATIONS, object)[users["occupation"][user]]),
        "city": _text(city[users["city"][user]]),
        "system": _text(systems[users["system"][user]]),
        "brand": brand[items["brand"][item]],
        "age": users["age"][user].astype(np.float32),
        "price": items["price"][item].astype(np.float32),
        "device": _text([f"device/{k}" for k in users["device"][user]]),
        "publisher": _text([f"https://site{k}.example" for k in publisher]),
        "browser": _text([f"browser {k}" for k in rng.integers(0, 40, rows)]),
        "referrer": _text([f"https://ref{k}.example/page" for k in referrer]),
    }
    tags = _bag(rng, rows, 0, 6, lambda n, r: top[r, rng.integers(0, 3, n)] * 20 + rng.integers(0, 20, n))
    columns["user_tags"] = tags
    topic = items["topic"][item]
    columns["item_tags"] = _bag(rng, rows, 1, 5, lambda n, r: topic[r] * 20 + rng.integers(0, 20, n))
    columns["blocked_categories"] = _bag(rng, rows, 0, 2, lambda n, r: rng.integers(1, 60, n))
    interests = _bag(rng, rows, 1, 4, lambda n, r: top[r, rng.integers(0, 3, n)] * 4 + rng.integers(0, 4, n))
    columns["interests"] = Bag(
        interests.values, interests.splits, rng.uniform(0.1, 1.0, len(interests.values)).astype("f4")
    )
    keywords = _bag(rng, rows, 0, 5, lambda n, r: topic[r] * 25 + rng.integers(0, 25, n))
    columns["keywords"] = Bag(
        keywords.values, keywords.splits, rng.uniform(0.05, 0.5, len(keywords.values)).astype("f4")
    )
    query = _bag(rng, rows, 0, 4, lambda n, r: np.where(rng.random(n) < 0.5, topic[r], rng.integers(0, 500, n)))
    columns["query"] = Bag(_text([f"word{k}" for k in query.values]), query.splits)
    columns |= _histories(rng, items, top)
    return columns, {"publisher": publisher, "referrer": referrer}


def _text(values: object) -> np.ndarray:
    return np.array([str(v).encode() for v in values], object)  # type: ignore[attr-defined]


def _bag(rng: np.random.Generator, rows: int, low: int, high: int, draw: object) -> Bag:
    """``low`` to ``high`` values per row; ``draw(count, row of each value)`` gives the values."""
    lengths = rng.integers(low, high + 1, rows)
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Bag(np.asarray(draw(int(splits[-1]), np.repeat(np.arange(rows), lengths)), np.int64), splits)  # type: ignore[operator]


def _histories(rng: np.random.Generator, items: dict[str, np.ndarray], top: np.ndarray) -> Columns:
    """The last clicks of each user, of topics the user likes; 0 is padding, and some rows are all padding."""
    rows = len(top)
    by_topic = [np.flatnonzero(items["topic"] == k) for k in range(TOPICS)]
    wanted = top[np.arange(rows)[:, None], rng.integers(0, 3, (rows, HISTORY))]
    sizes = np.array([len(v) for v in by_topic])
    lookup = np.zeros((TOPICS, sizes.max()), np.int64)
    for k, members in enumerate(by_topic):
        lookup[k, : len(members)] = members
    clicked = np.maximum(lookup[wanted, (rng.random((rows, HISTORY)) * sizes[wanted]).astype(int)], 1)
    seen = np.arange(HISTORY) < rng.integers(0, HISTORY + 1, (rows, 1))
    return {
        "clicked_items": clicked * seen,
        "clicked_categories": items["category"][clicked] * seen,
        "viewed_slots": rng.integers(1, 12, (rows, HISTORY)) * seen,
    }


def _logits(
    rng: np.random.Generator,
    users: dict[str, np.ndarray],
    items: dict[str, np.ndarray],
    user: np.ndarray,
    item: np.ndarray,
    columns: Columns,
    context: dict[str, np.ndarray],
) -> np.ndarray:
    """The planted truth, float64 [R]."""

    def effect(ids: np.ndarray, count: int, strength: float) -> np.ndarray:
        return rng.normal(0, strength, count)[ids]

    blocked = columns["blocked_categories"]
    assert isinstance(blocked, Bag)
    rows = np.repeat(np.arange(len(user)), np.diff(blocked.splits))
    annoyed = np.bincount(rows, blocked.values == items["category"][item][rows], len(user)) > 0
    return (
        -1.6
        + 0.6 * users["taste"][user, items["topic"][item]]
        + users["eagerness"][user]
        + items["quality"][item]
        + effect(np.asarray(columns["slot"]), 12, 0.8)
        + effect(np.asarray(columns["hour"]), 24, 0.6)
        + effect(context["publisher"], 350, 0.7)
        + effect(users["city"][user], len(CITIES) + 10, 0.5)
        + effect(users["device"][user], 250, 0.3)
        + effect(users["gender"][user] * 60 + items["category"][item], 180, 0.5)
        + 0.5 * (users["age"][user] > 45) * (items["price"][item] > 40)
        - 2.0 * annoyed
    )
