"""Files that hold model inputs and outputs: ``.npz`` (arrays) and ``.jsonl`` (one example per line)."""

from tfctr.bundle.rows import count_rows, take_rows
from tfctr.data.input_files import InputFile, read_inputs
from tfctr.data.output_files import write_outputs

__all__ = ["InputFile", "count_rows", "read_inputs", "take_rows", "write_outputs"]
