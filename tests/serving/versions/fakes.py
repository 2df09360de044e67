"""Folders with versions, and versions without models: what a manager does, apart from what it serves."""

import threading
from pathlib import Path

from tfctr.errors import CorruptFileError
from tfctr.serving.versions import ModelManager, ModelSpec


class FakeClock:
    """Time stands still until it is told otherwise."""

    def __init__(self, now=1000.0):
        self.now = now

    def time(self):
        return self.now

    def wait(self, event, seconds):
        return event.wait(0)


class FakeVersion:
    def __init__(self, number, text, options):
        self.number, self.text, self.options = number, text, options
        self.closed = False
        self.drained = None
        self.signatures = {}

    def describe(self):
        return {"text": self.text}

    def metrics(self):
        return {"text": self.text, "closed": self.closed}

    def close(self, drain_s):
        self.closed, self.drained = True, drain_s
        return drain_s > 0


class FakeLoader:
    """Loads the text of ``saved_model.pb``; "broken..." is refused. during: called while it loads."""

    def __init__(self):
        self.made = []
        self.tried = []
        self.during = None

    def __call__(self, folder, number, options):
        self.tried.append(number)
        file = Path(folder) / "saved_model.pb"
        if not file.is_file():
            raise CorruptFileError(f"{folder}: holds no saved_model.pb")
        text = file.read_text()
        if self.during is not None:
            self.during(number)
        if text.startswith("broken"):
            raise CorruptFileError(f"{folder}: is {text}")
        version = FakeVersion(number, text, options)
        self.made.append(version)
        return version


def write(base, number, text):
    folder = base if number is None else base / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "saved_model.pb").write_text(text)
    return folder


def manager(base, loader=None, clock=None, name="m", **spec):
    """Not started: looks at its folder when ``poll`` is called."""
    spec = ModelSpec(name=name, base_path=base, drain_seconds=0.2, **spec)
    return ModelManager([spec], clock or FakeClock(), loader=loader or FakeLoader(), start=False)


def answer(made, **choice):
    """What a request would be answered with."""
    with made.acquire("m", **choice) as lease:
        return lease.version.text


def states(made):
    return {one.number: one.state for one in made.status("m")[0].versions}


def errors(made):
    return {one.number: one.error for one in made.status("m")[0].versions if one.error}


def in_thread(run):
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
