"""`DeltaCheckpointManager`: checkpoints every few minutes, each with what changed in the tables since the one before.

>>> users = tfctr.EmbeddingVariable(16, "users", optimizer=tfctr.optimizers.Adagrad(0.05), record_changes=True)
>>> manager = tfctr.DeltaCheckpointManager(tf.train.Checkpoint(users=users, dense=dense), "checkpoints")
>>> manager.restore()   # the newest whole save, if there is one
>>> manager.save()      # the first is full, then deltas follow

docs/embedding_variable.md, "Delta checkpoints", has the rules, docs/decisions/0024 the reasons.
"""

import importlib
import json
import secrets
import threading
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfctr.embedding import checkpoint as tables
from tfctr.embedding import delta_manifest as listed
from tfctr.embedding import option_values as check
from tfctr.embedding.delta_manifest import Save, TableSave
from tfctr.errors import CorruptFileError, UsageError

_OWNER = "DeltaCheckpointManager"
_READ_BYTES = 16 << 20


class DeltaCheckpointManager:
    """Saves a `tf.train.Checkpoint` as a full save and deltas on it, and restores the newest, or any that is kept.

    A delta holds dense variables in full and, of every embedding variable with `record_changes=True`, the rows and
    counts that changed and the keys that went since the save before; other tables are in it in full. A full save and
    its deltas in order give what a full save at that moment would have given, bit for bit, in any number of shards.

    A save counts once its files are on the disk and the list of saves names it: what a killed process leaves is never
    restored. `tf.train.load_checkpoint` reads what a delta holds, and `tf.train.Checkpoint.read` of a delta's prefix
    restores it with all it builds upon.

    Args:
      checkpoint: what to save.
      directory: a local folder of its own; made where it is missing.
      max_deltas: deltas on one full save; then another full one.
      max_delta_rows: a full save also comes once the deltas of the last one hold more rows than this times the rows of
        its tables: a restore reads them all.
      keep: full saves to keep, each with its deltas.
      name: of the files: NAME-1.index and so on.

    Raises:
      UsageError: a bad option, or a directory that holds other checkpoints.
    """

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        directory: str | Path,
        *,
        max_deltas: int = 20,
        max_delta_rows: float = 1.0,
        keep: int = 2,
        name: str = "ckpt",
    ) -> None:
        if not isinstance(checkpoint, tf.train.Checkpoint):
            raise check.refuse(_OWNER, "checkpoint", checkpoint, "a tf.train.Checkpoint")
        if "://" in str(directory):
            raise check.refuse(_OWNER, "directory", directory, "a folder of this machine: a save is made by a rename")
        if not name or not all(letter.isalnum() or letter in "_." for letter in name):
            raise check.refuse(_OWNER, "name", name, "letters, digits, _ and .")
        self._checkpoint = checkpoint
        self._directory = Path(directory).absolute()
        self._max_deltas = check.whole(_OWNER, "max_deltas", max_deltas, 0)
        self._max_delta_rows = check.real(_OWNER, "max_delta_rows", max_delta_rows, low=0)
        self._keep = check.whole(_OWNER, "keep", keep, 1)
        self._name = name
        self._lock = listed.Lock(self._directory)
        self._one = threading.Lock()
        self._tail = ""  # `save` of the last one, from the first save on
        self._marks: dict[tuple[str, int], int] = {}  # of the tables, at that save
        self._attempt = tables.ChainSave("")  # the last save that was begun
        self._check_directory()

    @property
    def directory(self) -> str:
        """Where saves are."""
        return str(self._directory)

    @property
    def saves(self) -> tuple[Save, ...]:
        """What can be restored, oldest first; read from the directory."""
        return listed.read(self._directory)

    @property
    def latest_checkpoint(self) -> str | None:
        """Prefix of the newest save, or None."""
        saves = self.saves
        return str(self._directory / saves[-1].name) if saves else None

    def save(self, full: bool = False) -> Save:
        """Saves what changed since the last save, or everything where that is due; says which, and why.

        Training may go on meanwhile, as during any save of tables: rows of a shard (of 65,536 changed rows, in a delta)
        are of one moment, and what is written later is in the next save.

        Args:
          full: everything in any case, for example for tools that read whole tables alone; deltas follow it.

        Raises:
          UsageError: another manager saves into the directory, or did since this one's last save; parts are left out
            (`checkpoint_options`); a TF1 graph or a `tf.function` is being built.
          tf.errors.OpError, OSError: the disk; nothing is left of the save, and the next one holds its changes too.
        """
        check.flag(_OWNER, "full", full)
        self._check_surroundings()
        with self._one:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock.take()
            self._check_directory()
            saves = self.saves
            if saves and saves[-1].save == self._attempt.save:  # interrupted after it was listed
                self._tail, self._marks = self._attempt.save, self._attempt.ended
            if self._tail and (not saves or saves[-1].save != self._tail):
                raise UsageError(
                    f"{self._directory}: its last save is {saves[-1].name if saves else 'gone'}, not the one that this "
                    f"DeltaCheckpointManager made: another one saves here; give each a directory of its own"
                )
            return self._save(saves, "full=True" if full else self._why_full(saves))

    def _save(self, saves: tuple[Save, ...], why: str) -> Save:
        kept = {save.number for save in saves}
        found = listed.numbers(self._directory, self._name)
        listed.remove([path for number, paths in found.items() if number not in kept for path in paths])
        number = max([*found, *kept, 0]) + 1
        chain = tables.ChainSave(secrets.token_hex(16))
        if not why:
            chain.previous_name, chain.previous_save = saves[-1].name, saves[-1].save
            chain.marks = self._marks if saves[-1].save == self._tail else {}
        self._attempt = chain
        name = f"{self._name}-{number}"
        with listed.removing_on_error(self._directory, self._name, number):
            with tables.saving_in_chain(chain):
                self._checkpoint.write(str(self._directory / name))
            save = self._described(name, number, chain, why)
            saves = self._retained((*saves, save))
            listed.write(self._directory, saves)
        self._tail, self._marks = save.save, chain.ended
        self._point_at(saves)
        kept = {save.number for save in saves}
        found = listed.numbers(self._directory, self._name)
        listed.remove([path for number, paths in found.items() if number not in kept for path in paths])
        return save

    def _why_full(self, saves: tuple[Save, ...]) -> str:
        if not saves:
            return "there is no save before it"
        links = listed.chain(self._directory, saves, saves[-1].name)
        deltas = links[1:]
        if len(deltas) >= self._max_deltas:
            return f"{len(deltas)} deltas are on the last full save, max_deltas is {self._max_deltas}"
        rows = sum(table.rows + table.removed for save in deltas for table in save.tables)
        most = self._max_delta_rows * sum(table.table_rows for table in links[-1].tables)
        if deltas and rows > most:
            return f"deltas on the last full save hold {rows} rows, max_delta_rows allows {most:.0f}"
        return ""

    def _described(self, name: str, number: int, chain: tables.ChainSave, why: str) -> Save:
        """The save that was written, as the list is to have it, its files on the disk."""
        files = listed.files_of(self._directory, name)
        for path in files:
            listed.sync(path)
        listed.sync(self._directory)
        saved = self._table_saves(name, chain, why)
        delta = any(table.delta for table in saved)
        if not delta and not why:
            why = "every table is saved whole" if saved else "there are no embedding variables"
        return Save(
            name=name,
            number=number,
            save=chain.save,
            previous=chain.previous_save if delta else "",
            why="" if delta else why,
            time=time.time(),
            files={path.name: path.stat().st_size for path in files},
            index_sha256=listed.index_sha256(self._directory, name),
            tables=tuple(saved),
        )

    def _table_saves(self, name: str, chain: tables.ChainSave, why: str) -> list[TableSave]:
        reader = tf.train.load_checkpoint(str(self._directory / name))
        saved = []
        for table, (since, remembers) in sorted(chain.tables.items()):
            told = json.loads(reader.get_tensor(f"{table}/config" if table else "config"))
            delta = "previous" in told
            rows = int(told["rows"])
            saved.append(
                TableSave(
                    name=table,
                    delta=delta,
                    rows=rows,
                    removed=int(told.get("removed", 0)),
                    table_rows=int(told.get("table_rows", rows)),
                    why="" if delta else why or _why_whole(since, remembers),
                )
            )
        return saved

    def _retained(self, saves: tuple[Save, ...]) -> tuple[Save, ...]:
        """Without the full saves, and their deltas, that are too many. One that a kept delta needs is never among
        them: a delta is kept or goes with the full save before it."""
        full = [i for i, save in enumerate(saves) if not save.is_delta]
        return saves[full[-self._keep] :] if len(full) > self._keep else saves

    def _point_at(self, saves: tuple[Save, ...]) -> None:
        """For `tf.train.latest_checkpoint`; a restore by this class does not look at it."""
        lines = [f'model_checkpoint_path: "{saves[-1].name}"']
        lines += [f'all_model_checkpoint_paths: "{save.name}"' for save in saves]
        listed.replace(self._directory / "checkpoint", "\n".join(lines) + "\n")

    def restore(self, save: str | None = None, *, verify: bool = True) -> Any:
        """Restores a save: dense variables, and every table as it was, from the full save and the deltas up to it.

        Args:
          save: its name ("ckpt-12"), or prefix; None: the newest.
          verify: read all bytes and compare checksums first, so that nothing at all changes where some are damaged.
            False: tables still are as they were then, but dense variables may have been restored by the time.

        Returns:
          What `tf.train.Checkpoint.read` does (`assert_consumed` and so on); None where there is no save yet.

        Raises:
          UsageError: there is no such save.
          CorruptFileError: a file of it, or of a save that it builds upon, is missing, damaged or another one.
          tf.errors.OpError: a table does not fit what was saved.
        """
        self._check_surroundings(options=False)
        saves = self.saves
        if save is None and not saves:
            return None
        wanted = saves[-1].name if save is None else Path(save).name
        for link in listed.chain(self._directory, saves, wanted):
            listed.check_files(self._directory, link)
            if verify:
                verify_data(self._directory / link.name)
        return self._checkpoint.read(str(self._directory / wanted))

    def close(self) -> None:
        """Lets another manager save into the directory; a later `save` of this one is refused if one did."""
        self._lock.release()

    def __enter__(self) -> "DeltaCheckpointManager":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self._lock.release()

    def _check_directory(self) -> None:
        if self._directory.exists() and not self._directory.is_dir():
            raise check.refuse(_OWNER, "directory", str(self._directory), "a folder")
        if not self._directory.is_dir() or (self._directory / listed.FILE_NAME).exists():
            return
        names = sorted(path.name for path in self._directory.iterdir())
        others = [name for name in names if name.endswith(".index") or name == "checkpoint"]
        if others and not (self._directory / listed.LOCK_NAME).exists():
            raise UsageError(
                f"{self._directory}: it holds other checkpoints ({', '.join(others[:3])}), expected a directory of its "
                f"own for a {_OWNER}"
            )

    def _check_surroundings(self, options: bool = True) -> None:
        if not tf.executing_eagerly():
            raise UsageError(f"{_OWNER}: it works in eager mode, not in a TF1 graph or while a tf.function is traced")
        if options and tables.current_options() != tables.CheckpointOptions():
            raise UsageError(
                f"{_OWNER}: a save leaves nothing out, or no delta could follow it; call save() outside of "
                f"checkpoint_options"
            )


def verify_data(prefix: Path) -> None:
    """Reads all of a checkpoint and compares its checksums.

    Raises:
      CorruptFileError: they differ, or the files don't fit one another; names the file.
    """
    texts = []
    native = importlib.import_module("tfctr.core._native")
    for entry in native.read_checkpoint_index(str(prefix)):
        if entry["dtype"] in ("string", "object"):
            texts.append(entry["key"])  # their checksum is not that of the bytes
            continue
        for part in entry["slices"] or [entry]:
            _verify_part(native, entry["key"], part)
    reader = tf.train.load_checkpoint(str(prefix))
    for key in texts:
        try:
            reader.get_tensor(key)
        except tf.errors.OpError as error:
            raise CorruptFileError(f"{prefix}: tensor {key!r}: {error.message}") from None


def _verify_part(native: Any, key: str, part: dict[str, Any]) -> None:
    crc, at, end = 0, part["offset"], part["offset"] + part["size"]
    with open(part["shard"], "rb") as file:
        file.seek(at)
        while at < end:
            piece = file.read(min(_READ_BYTES, end - at))
            if not piece:
                raise CorruptFileError(f"{part['shard']}: it ends at byte {at}, within tensor {key!r}")
            crc = native.crc32c_extend(crc, piece)
            at += len(piece)
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    if masked != part["crc32c"]:
        raise CorruptFileError(
            f"{part['shard']}: bytes {part['offset']} to {end} (tensor {key!r}) have the checksum {masked:08x}, "
            f"expected {part['crc32c']:08x}"
        )


def _why_whole(since: int, remembers: bool) -> str:
    if not remembers:
        return "it does not remember changes: make it with record_changes=True"
    if since < 0:
        return "it is new here, or was replaced since the save before (restored, imported), or took another name"
    return "so much changed, or was removed, that a delta would be no smaller"
