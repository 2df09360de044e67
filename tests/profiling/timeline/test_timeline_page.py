"""The page: numbers and texts in it, hostile names, and how it looks in a browser."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.profiling.timeline import made
from tfctr.profiling.timeline import grouping, page_data
from tfctr.profiling.timeline.analysis import analyse
from tfctr.profiling.timeline.events import Timeline
from tfctr.profiling.timeline.page import render_page, summary, write_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"


class Texts(html.parser.HTMLParser):
    """Elements and texts of a page; contents of scripts apart."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.said = ""
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif not self._inside:
            self.said += data


def parsed(page: str) -> Texts:
    texts = Texts()
    texts.feed(page)
    return texts


def hostile() -> Timeline:
    name = HOSTILE
    events = [
        made.op(name, "ResourceGather", 10, 50, features=[name, "x", "y"], tables=[name], made=name, rule=name),
        made.op("tower", name, 60, 90),
    ]
    return made.timeline(
        events, (0, 100), path=name, notes=(name,), complete=False, error=name, machine={name: name},
        edges={"tower": (name,)},
    )  # fmt: skip


def test_the_page_says_what_was_slow_and_what_changed() -> None:
    texts = parsed(render_page(made.bundle(), made.stock()))
    said = " ".join(texts.said.split())
    assert (
        "In stock TensorFlow a call with 256 rows takes 800 ns: 60 % of it passes while no operation runs (feeding, "
        in said
    )
    assert "the same call takes 320 ns, 2.5 times as fast: 3 operations run instead of 5" in said
    assert "embedding lookups take 64 ns in 1 operation instead of 160 ns in 4" in said
    assert "Group 1: 2 features together: f0, f1" in said
    assert "in group 1" in said
    assert "fuse_lookups, rule 2 lookups" in said
    assert "1 stretch" in said and "300 ns" in said  # spread, critical path


def test_a_busy_machine_is_named() -> None:
    busy = dataclasses.replace(made.stock(), untraced_ns=(300,))
    told = summary(made.bundle(), busy)["warnings"]
    assert len(told) == 1 and "Recorded steps of stock TensorFlow took 1.00 µs" in told[0]
    assert "kept this machine busy" in parsed(render_page(made.bundle(), busy)).said
    assert summary(made.bundle(), made.stock())["warnings"] == []


def test_waits_for_a_processor_are_told_once() -> None:
    waits = [
        dataclasses.replace(one, waiting_threads=share) for one, share in ((made.bundle(), 0.4), (made.stock(), 0.6))
    ]
    (told,) = summary(*waits)["warnings"]
    assert "0.6 threads of this process on average had work to do and no processor" in told
    said = parsed(render_page(*waits)).said
    assert said.count("other work keeps this machine busy") == 1 and "0.4 on average" in said
    few = dataclasses.replace(made.bundle(), waiting_threads=0.02)
    assert summary(few, made.stock())["warnings"] == []


def test_parts_of_a_call_are_not_more_than_the_call() -> None:
    slow = dataclasses.replace(made.bundle(), untraced_ns=(200,))  # recorded: 400
    assert "the same call takes 200 ns" in (told := summary(slow, made.stock())["changed"])
    assert "embedding lookups take 40 ns in 1 operation" in told, told


def test_the_page_needs_nothing_else() -> None:
    page = render_page(made.bundle(), made.stock())
    for _, attributes in parsed(page).tags:
        for name in ("src", "href", "data", "action"):
            assert name not in attributes
    assert not re.search(r"https?://|@import|url\(", page)


def test_a_hostile_name_runs_no_script() -> None:
    texts = parsed(render_page(hostile(), hostile()))
    assert [tag for tag, _ in texts.tags].count("script") == 2
    assert all(tag != "img" for tag, _ in texts.tags)
    assert not any(name.startswith("on") for _, attributes in texts.tags for name in attributes)
    assert HOSTILE in texts.said
    data = json.loads(texts.scripts[0])
    assert HOSTILE in data["sides"][0]["texts"]


def test_a_profile_without_lookups_or_steps_says_so() -> None:
    plain = parsed(render_page(made.timeline([made.op("a", "MatMul", 0, 50)], (0, 100)))).said
    assert "No embedding lookup was found" in plain and "No embedding lookup ran in this recording." in plain
    assert "There is nothing to compare with yet" in plain
    empty = parsed(render_page(made.timeline([], complete=False, error="inputs: row 3 is bad"))).said
    assert "This profile is not complete." in empty and "inputs: row 3 is bad" in empty
    assert "Nothing was recorded" in empty and "nothing to draw" in empty
    mixed = parsed(render_page(made.bundle(), made.timeline([]))).said
    assert "can't be compared, because one of them has no complete step" in mixed


def test_long_tables_end_with_the_sum_of_the_rest() -> None:
    a = analyse(made.stock(60))
    rows = grouping.by_feature(None, a.by_feature, "none")
    top, rest = grouping.rest_of(rows)
    assert len(top) == grouping.TOP and rest is not None and rest.after is not None
    assert rest.label == "42 others"
    total = sum(row.after.time_ns for row in top if row.after) + rest.after.time_ns
    assert total == pytest.approx(a.step_ns)
    assert "42 others" in parsed(render_page(made.stock(60))).said


def test_features_say_which_group_they_are_in() -> None:
    def side(*keys: tuple[str, ...]) -> list[grouping.Share]:
        return [grouping.Share(key=key, time_ns=10.0 * len(key), share=0.1, calls=1, nodes=1) for key in keys]

    rows = grouping.by_feature(side(("a",), ("b", "c"), ()), side(("a", "b", "c", "d"), ("a", "b")), "none")
    assert {row.label: (row.before_note, row.after_note) for row in rows} == {
        "Group 2: 4 features together: a, b, c, d": ("", ""),
        "Group 1: 2 features together: b, c": ("in group 1", ""),  # b is in another group, too
        "Group 3: 2 features together: a, b": ("", "in groups 2, 3"),
        "a": ("", "in groups 2, 3"),
        "none": ("", ""),
    }


def test_the_summary_is_plain_data() -> None:
    told = json.loads(json.dumps(summary(made.bundle(), made.stock())))
    assert told["profile"]["by_role"]["lookup"] == {"time_ns": 80, "share": 0.2, "operations": 1}
    assert told["baseline"]["critical_path"]["total_ns"] == 300
    assert {"features": ["f0", "f1"], "time_ns": 80, "share": 0.2, "operations": 1} in told["profile"]["by_feature"]
    assert told["advice"][0]["command"].startswith("tfctr ")


def test_overlapping_events_lie_below_each_other() -> None:
    events = [
        made.op("a", "A", 0, 100),
        made.op("b", "B", 10, 50),
        made.op("c", "C", 20, 30),
        made.op("d", "D", 60, 90),
    ]
    assert page_data.stack(events) == [0, 1, 2, 1]
    assert max(page_data.stack([made.op("x", "X", k, 1000) for k in range(40)])) == page_data.MAX_ROWS - 1


def test_a_path_that_is_no_utf8(tmp_path: Path) -> None:
    timeline = dataclasses.replace(made.stock(), path=os.fsdecode(b"/models/\xff"))
    write_page(tmp_path / "page.html", timeline)
    assert "/models/\\udcff" in (tmp_path / "page.html").read_text()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "index.html"
    old.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_page(old, made.bundle())
    assert [file.name for file in tmp_path.iterdir()] == ["index.html"] and old.read_text() == "old"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a model with 200 features: 4,000 lookup operations before, 3 operations after."""
    events, edges, now = [], {}, 50_000
    kinds = ("Cast", "Unique", "ResourceGather", "SparseSegmentMean", "Reshape") * 4
    for feature in range(200):
        for k, kind in enumerate(kinds):
            name = f"lookup_{feature}/{kind}_{k}"
            length = 900 + 137 * ((feature * 31 + k * 17) % 23)
            tags = {"features": [f"feature_{feature}"], "tables": [f"table_{feature}"]}
            events.append(made.op(name, kind, now, now + length, **tags))
            edges[name] = (f"lookup_{feature}/{kinds[k - 1]}_{k - 1}",) if k else ()
            now += length + 600
    events.append(made.op("tower/MatMul", "MatMul", now, now + 200_000))
    edges["tower/MatMul"] = ("lookup_199/Reshape_19",)
    before = made.timeline(events, (0, now + 230_000), edges=edges)
    path = tmp_path_factory.mktemp("page") / "index.html"
    after = made.bundle(200)
    scaled = [made.op(e.name, e.op, 1000 * e.start_ns, 1000 * e.end_ns, features=e.tags.features) for e in after.events]
    write_page(path, made.timeline(scaled, (0, 400_000), form="bundle", edges=after.edges), before)
    return path


def browse(page: Path, *options: str) -> str:
    """Runs Chromium on ``page``; its standard output."""
    assert CHROMIUM is not None
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage")
    folder = page.parent / f"profile-{len(list(page.parent.iterdir()))}"
    done = subprocess.run(
        [CHROMIUM, *flags, f"--user-data-dir={folder}", *options, page.as_uri()],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return done.stdout


@needs_browser
def test_the_page_opens_and_shows_its_numbers(large: Path) -> None:
    texts = parsed(browse(large, "--dump-dom"))
    assert "into embedding lookups (4,000 operations for 200 features" in texts.said
    canvas = next(attributes for tag, attributes in texts.tags if tag == "canvas")
    assert int(canvas["width"] or 0) > 600 and int(canvas["height"] or 0) > 100  # the script ran to its end
    assert large.stat().st_size < 1_000_000


@needs_browser
@pytest.mark.parametrize("size", [(1280, 1500), (420, 1500)])
def test_the_page_is_drawn(large: Path, size: tuple[int, int]) -> None:
    import tensorflow as tf

    picture = large.with_name(f"{size[0]}.png")
    browse(large, f"--screenshot={picture}", f"--window-size={size[0]},{size[1]}")
    image = tf.io.decode_png(picture.read_bytes(), channels=3).numpy().astype(int)
    assert image.shape == (size[1], size[0], 3)
    paper = image[2, 2]
    codes = image @ (1 << 16, 1 << 8, 1)
    for name, colour in {
        "lookup": (0x2F, 0x6F, 0xC9),
        "dense": (0xE0, 0x8A, 0x00),
        "overhead": (0xA9, 0xB1, 0xBD),
    }.items():
        assert (np.abs(image - colour).max(-1) < 12).sum() > 400, f"nothing has the colour of {name}"
    for top in range(0, size[1] - 250, 250):
        colours, counts = np.unique(codes[top : top + 250], return_counts=True)
        blank = counts.max() / counts.sum()
        assert len(colours) > 20 and blank < 0.995, f"pixels {top} to {top + 250} are {blank:.1%} of one colour"
    assert (np.abs(image[:, -6:] - paper).max(-1) < 8).all(), "something is wider than the page"


@needs_browser
def test_a_hostile_name_runs_no_script_in_a_browser(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    write_page(page, hostile(), hostile())
    title = re.search(r"<title>(.*?)</title>", browse(page, "--dump-dom"), re.DOTALL)
    assert title is not None and title[1].startswith("tfctr profile:")
