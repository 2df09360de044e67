"""Walking through the pipeline one pass at a time, keeping what each pass was given."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from graph_opt import pipeline
from graph_opt.bisect.forms import Runner
from graph_opt.counts import disk_needed
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.report import Pass, PassReport
from graph_opt.saved_model import SavedModelSource, inline
from tfctr.bundle.writer import size_text
from tfctr.errors import UsageError

Progress = Callable[[str, int, int], None]
Note = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A pass, the model before and after it, and its report."""

    one: Pass
    before: GraphItem
    after: GraphItem
    report: PassReport

    @property
    def runnable(self) -> bool:
        """Whether the model after the pass can run on its own: nothing in it waits for the model's own checkpoint."""
        kept = {state.node for state in self.after.mutable_state}
        nodes = {node.name for node in self.after.graph_def.node}
        return not ((set(self.after.variables) | set(self.after.restored_tables)) & nodes) - kept


class Walk:
    """The pipeline over one model. ``folder``: an empty one for table files, which needs the room of the bundle.

    reference: the graph of stock operations over the store's files, once the passes have come so far.
    """

    def __init__(self, source: SavedModelSource, signature: str, options: ConvertOptions, folder: Path) -> None:
        self.source, self.signature, self.folder = source, signature, folder
        self.options = dataclasses.replace(options, signatures=(signature,), strict=False, report_path=None)
        pipeline.check_names(self.options)
        self.first = inline(source, (signature,))
        self.first.store_name = f"tfctr/bisect/{folder.name}"
        self.reference: GraphItem | None = None
        self._folders = 0
        needed, free = disk_needed(self.first, source), shutil.disk_usage(folder).free
        if needed > free:
            raise UsageError(
                f"{folder}: needs about {size_text(needed)} of disk for tables, {size_text(free)} are free"
            )

    def stages(self, progress: Progress, options: ConvertOptions | None = None) -> Iterator[Stage]:
        """Runs one pass after the other."""
        options = options or self.options
        item = self.first.copy()
        item.work_dir = self.new_folder()
        passes = pipeline.all_passes(options)
        for number, one in enumerate(passes):
            progress(f"after {one.name}", number, len(passes))
            before = item.copy()
            if number == len(pipeline.REFERENCE_PASSES):
                self.reference = before
            report = pipeline.run_pass(item, one, options)
            yield Stage(one=one, before=before, after=item.copy(), report=report)
        progress("passes", len(passes), len(passes))

    def again(self, stage: Stage, options: ConvertOptions) -> GraphItem:
        """The model after the same pass with other options; its new files go to a folder of their own, because the
        others may still be mapped.
        """
        item = stage.before.copy()
        item.work_dir = self.new_folder()
        pipeline.run_pass(item, stage.one, options)
        return item

    def runner(self, item: GraphItem, *, optimised: bool = False) -> Runner:
        return Runner(item, self.signature, self.source, self.new_folder(), optimised=optimised)

    def new_folder(self) -> Path:
        self._folders += 1
        folder = self.folder / f"{self._folders:04d}"
        folder.mkdir()
        return folder
