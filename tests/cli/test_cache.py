"""`tfctr cache`: what it shows, checks and removes, and what it leaves alone."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from export.cache import CompileCache, Entry
from tests.export.cache.keys import Builder, hear, kill, start
from tests.export.cache.keys import key as numbered
from tfctr.cli.main import main


@pytest.fixture
def root(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The default cache of the test."""
    monkeypatch.setenv("TFCTR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fill(root: pathlib.Path, count: int = 3) -> list[Entry]:
    """Two of a tower and one engine; the last one used last, an hour apart."""
    found = []
    with CompileCache(root) as cache:
        for k in range(count):
            level = "engine" if k == 2 else "tower"
            files = {"tower.onnx": b"x" * 1000 * (k + 1)}
            found.append(cache.get_or_build(level, numbered(k), Builder(files), label=f"models/[b]{k} serving_default"))
    now = time.time()
    for k, one in enumerate(found):
        os.utime(one.folder / "key.json", (now, now - 3600 * (count - k)))
    return found


def told(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["cache", *argv]) == code
    return capsys.readouterr().out


def data(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict:
    return json.loads(told(capsys, *argv, "--json", code=code))


def refused(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 2) -> str:
    capsys.readouterr()
    assert main(["cache", *argv]) == code
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err


def test_list(root, capsys):
    entries = fill(root)
    text = told(capsys, "list")
    assert text.startswith(f"{root}: 3 entries, ")
    lines = [line for line in text.splitlines() if "serving_default" in line]
    assert [line.split()[0] for line in lines] == [one.key[:12] for one in entries[::-1]]
    assert "models/[b]2 serving_default" in lines[0] and " engine " in lines[0]
    found = data(capsys, "list")
    assert found["root"] == str(root)
    assert [one["key"] for one in found["entries"]] == [one.key for one in entries[::-1]]
    first = found["entries"][0]
    assert first["level"] == "engine" and first["state"] == "" and first["files"] == ["tower.onnx"]
    assert first["bytes"] > 3000 and first["folder"] == str(entries[2].folder)


def test_list_tells_what_is_wrong(root, capsys):
    entries = fill(root)
    (entries[0].folder / "key.json").write_text("{")
    record = json.loads((entries[1].folder / "key.json").read_text())
    (entries[1].folder / "key.json").write_text(json.dumps({**record, "tfctr_cache": 7}))
    (entries[2].folder / "tower.onnx").write_bytes(b"")
    with CompileCache(root, note=lambda line: None) as cache:
        cache.get_or_build("engine", numbered(2), Builder())
    states = {one["key"]: one["state"] for one in data(capsys, "list")["entries"]}
    assert states[entries[0].key].startswith("damaged: key.json is no JSON")
    assert states[entries[1].key] == "format 7; this tfctr writes and reads format 1"
    assert states.pop(entries[2].key) == ""
    assert "set aside" in states.values() and len(states) == 3
    assert "set aside" in told(capsys, "list")


def test_show(root, capsys):
    entry = fill(root)[1]
    text = told(capsys, "show", entry.key[:6])
    for words in (
        f"key:        tower/{entry.key}",
        "for:        models/[b]1 serving_default",
        f"folder:     {entry.folder}",
        "tensorflow 2.21",
        "file:       tower.onnx  2.0 KB  sha256 ",
        "  recipe: {'precision': 'fp16'}",
        "  number: 1",
    ):
        assert words in text
    found = data(capsys, "show", f"tower/{entry.key}")
    assert found["key"] == numbered(1) and found["folder"] == str(entry.folder)


def test_show_refuses(root, capsys):
    entries = fill(root)
    assert "give at least 4 digits" in refused(capsys, "show", "a")
    assert "no entry begins with 'zzzz'" in refused(capsys, "show", "zzzz")
    assert "no entry begins with 'engine/" in refused(capsys, "show", f"engine/{entries[0].key}")
    twin = entries[0].folder.with_name(entries[0].key[:-1] + ("0" if entries[0].key[-1] != "0" else "1"))
    entries[1].folder.rename(twin)
    assert "2 entries begin with it" in refused(capsys, "show", entries[0].key[:8])
    (entries[2].folder / "key.json").write_text("")
    assert "key.json is no JSON" in refused(capsys, "show", entries[2].key)


def test_verify(root, capsys):
    entries = fill(root)
    assert "3 entries are whole" in told(capsys, "verify")
    (entries[1].folder / "tower.onnx").write_bytes(b"y" * 2000)
    text = told(capsys, "verify", code=2)
    assert f"damaged: {entries[1].folder}: the checksum of tower.onnx is wrong" in text
    assert "2 entries are whole" in text
    assert "1 damaged; each is set aside and built anew when it is next asked for" in refused(capsys, "verify")
    found = data(capsys, "verify", code=2)
    assert found["entries"] == 2
    assert found["damaged"] == [{"folder": str(entries[1].folder), "reason": "the checksum of tower.onnx is wrong"}]
    assert entries[1].folder.exists()  # it only looks


def test_prune_by_size(root, capsys):
    entries = fill(root)
    text = told(capsys, "prune", "--max-bytes", "8k")
    assert "1 entry removed" in text and "; 2 left, " in text
    assert [one.folder.exists() for one in entries] == [False, True, True]
    assert data(capsys, "prune", "--max-bytes", "0")["left"] == 0


def test_prune_by_age(root, capsys):
    entries = fill(root)
    found = data(capsys, "prune", "--older-than-days", "0.1")  # 2.4 hours
    assert (found["entries"], found["left"]) == (1, 2)
    assert not entries[0].folder.exists()


def test_prune_removes_what_is_of_no_use(root, capsys):
    entries = fill(root)
    (entries[0].folder / "tower.onnx").write_bytes(b"")
    with CompileCache(root, note=lambda line: None) as cache:
        cache.get_or_build("tower", numbered(0), Builder())
    left = root / "tmp" / f"tower-{'a' * 64}-1-0123"
    left.mkdir()
    found = data(capsys, "prune")
    assert (found["entries"], found["left"], found["leftovers"]) == (1, 3, 1)
    assert not left.exists() and list((root / "damaged").iterdir()) == []


def test_clear(root, capsys):
    fill(root)
    (root / "mine.txt").write_text("kept")
    assert ": 3 entries removed, " in told(capsys, "clear")
    assert (root / "mine.txt").read_text() == "kept" and (root / "CACHEDIR.TAG").exists()
    assert told(capsys, "list").endswith("0 entries, 0 bytes\n")


def test_what_is_in_use_stays(root, capsys):
    entries = fill(root)
    other = start(root, 'say(cache.get_or_build("tower", key(0), Builder()).status)\nwait()')
    assert hear(other) == "hit"
    text = told(capsys, "clear")
    assert "2 entries removed" in text and "1 stay because they are in use" in text
    assert entries[0].folder.exists()
    kill(other)
    assert "1 entry removed" in told(capsys, "clear")


@pytest.mark.parametrize("action", ["list", "verify", "prune", "clear"])
def test_where_nothing_was_kept_yet(root, capsys, action):
    assert told(capsys, action) == f"{root}: there is no compile cache yet\n"
    assert data(capsys, action)["entries"] in ([], 0)
    assert not root.exists()
    root.mkdir()
    assert "there is no compile cache yet" in told(capsys, action)
    assert list(root.iterdir()) == []
    assert "there is no compile cache yet, so no entry" in refused(capsys, "show", "abcdef")


@pytest.mark.parametrize("action", ["list", "verify", "prune", "clear"])
def test_a_folder_that_is_no_cache(tmp_path, capsys, action):
    """Most of all by `clear`: it is not touched, whatever it looks like."""
    mine = tmp_path / "mine" / "tower" / ("a" * 64)
    mine.mkdir(parents=True)
    (mine / "thesis.txt").write_text("x")
    error = refused(capsys, action, "--cache-dir", str(tmp_path / "mine"))
    assert "is no compile cache of tfctr" in error and str(tmp_path / "mine") in error
    assert (mine / "thesis.txt").exists()
    assert "is no folder" in refused(capsys, action, "--cache-dir", str(mine / "thesis.txt"))


def test_switched_off(monkeypatch, capsys):
    monkeypatch.setenv("TFCTR_CACHE_DIR", "off")
    assert "there is no compile cache: TFCTR_CACHE_DIR=off; --cache-dir names one" in refused(capsys, "list")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "required: ACTION"),
        (["lits"], "invalid choice: 'lits'"),
        (["show"], "required: KEY"),
        (["prune", "--max-bytes", "much"], "'much' is no size such as 500MB or 2GB"),
        (["prune", "--max-bytes", "-1"], "'-1' is no size"),
        (["prune", "--older-than-days", "-3"], "'-3' is no number of days"),
        (["prune", "--older-than-days", "nan"], "'nan' is no number of days"),
    ],
)
def test_usage_errors(argv, words, capsys):
    assert main(["cache", *argv]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1000", 1000), ("500MB", 500 << 20), ("1.5g", 3 << 29), ("2 GiB", 2 << 30), ("10kb", 10240), ("7b", 7)],
)
def test_sizes(text, size):
    from tfctr.cli.cache import size as parse

    assert parse(text) == size


def test_it_is_quick(root):
    """No TensorFlow, no ONNX, no NumPy is imported for it."""
    fill(root)
    code = (
        "import sys\n"
        "from tfctr.cli.main import main\n"
        "for action in (['list'], ['verify'], ['prune'], ['clear']):\n"
        "    assert main(['cache', *action]) == 0\n"
        "heavy = sorted({'tensorflow', 'onnx', 'numpy', 'openvino'} & set(sys.modules))\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_labels_can_be_anything(root, capsys):
    """A model may be called anything; one entry is one line."""
    with CompileCache(root) as cache:
        cache.get_or_build("tower", numbered(1), Builder(), label="a\nb\x1b[31m [/] \u00e9")
    (line,) = [line for line in told(capsys, "list").splitlines() if " tower " in line]
    assert "a?b?[31m [/] \u00e9" in line
    assert "a?b?[31m [/] \u00e9" in told(capsys, "show", data(capsys, "list")["entries"][0]["key"])


def test_folders_can_be_called_anything(tmp_path, capsys):
    """Not even text: nothing that prints it fails."""
    root = tmp_path / os.fsdecode(b"[bold] \xff\n caf\xc3\xa9")
    with CompileCache(root, note=lambda line: None) as cache:
        entry = cache.get_or_build("tower", numbered(1), Builder())
        (entry.folder / "tower.onnx").write_bytes(b"")
        cache.get_or_build("tower", numbered(1), Builder())
        assert "[bold] ?" in cache.notes[0]
    where = ["--cache-dir", str(root)]
    assert "[bold] ?? caf\u00e9: 2 entries" in told(capsys, "list", *where)
    for argv in (["show", entry.key[:8]], ["verify"], ["prune"], ["clear"]):
        told(capsys, *argv, *where)
    assert data(capsys, "list", *where)["entries"] == []
    assert "--cache-dir is empty" in refused(capsys, "list", "--cache-dir", "")


def test_the_limit_of_a_conversion():
    """Sizes are written alike in `convert` and in `cache prune`."""
    from tfctr.cli.convert_options import dense_of
    from tfctr.cli.main import build_parser

    def limit(*argv: str) -> int:
        return dense_of(build_parser().parse_args(["convert", "model", "out", *argv])).cache_limit_bytes

    assert limit() == 2 << 30
    assert limit("--cache-limit", "1.5GB") == 3 << 29
