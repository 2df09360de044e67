"""The command's frame: help and version without TensorFlow, exit codes, one-line errors, --debug."""

import argparse
import subprocess
import sys

import pytest

import tfctr.errors
from tfctr.cli import main as cli
from tfctr.version import __version__


@pytest.fixture
def failing(monkeypatch):
    """Makes `tfctr fail` a command that raises what the test hands to it."""

    def install(error: BaseException) -> None:
        def build() -> argparse.ArgumentParser:
            def run(args: argparse.Namespace) -> int:
                raise error

            parser = argparse.ArgumentParser(prog="tfctr")
            parser.add_argument("--debug", action="store_true")
            parser.add_subparsers(required=True).add_parser("fail").set_defaults(run=run)
            return parser

        monkeypatch.setattr(cli, "build_parser", build)

    return install


def test_help_teaches_commands_and_exit_codes(capsys):
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert f"\n    {name} " in out or f"\n    {name}\n" in out
    for code in range(5):
        assert f"\n  {code}  " in out


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command, capsys):
    assert cli.main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "--debug" in out
    assert "exit codes:" in out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"tfctr {__version__}"


def test_help_and_version_do_not_import_tensorflow():
    code = (
        "import sys\n"
        "from tfctr.cli.main import main\n"
        "assert main(['--help']) == 0 and main(['--version']) == 0 and main(['convert', '--help']) == 0\n"
        "assert main(['convert']) == 2\n"
        "heavy = sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules))\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("argv", [[], ["no-such-command"], ["--no-such-option"], ["convert"], ["doctor", "extra"]])
def test_usage_errors_end_with_2(argv, capsys):
    assert cli.main(argv) == 2
    assert "tfctr" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (tfctr.errors.UsageError("model/: no such folder"), 2),
        (tfctr.errors.InputError("feature 'age': came rank 2, expected 1"), 2),
        (tfctr.errors.CorruptFileError("t.tab: checksum"), 2),
        (tfctr.errors.VersionError("2.20 and 2.21"), 2),
        (tfctr.errors.OutputsDifferError("score: 0.5 against 0.6"), 3),
        (tfctr.errors.StrictRefusal("lookup 'x' was left"), 4),
        (tfctr.errors.InternalError("broken"), 1),
        (ValueError("surprise\nin two lines"), 1),
        (FileNotFoundError(2, "No such file or directory", "in.npz"), 2),
    ],
)
def test_errors_are_one_line_with_their_code(failing, capsys, error, code):
    failing(error)
    assert cli.main(["fail"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tfctr: error: ")
    assert captured.err.count("\n") == 1
    named = "in.npz" if isinstance(error, OSError) and not isinstance(error, ImportError) else str(error).split("\n")[0]
    assert named in captured.err


def test_debug_shows_the_traceback(failing, capsys):
    failing(tfctr.errors.UsageError("model/: no such folder"))
    assert cli.main(["--debug", "fail"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.rstrip().endswith("tfctr: error: model/: no such folder")


def test_interrupt(failing, capsys):
    failing(KeyboardInterrupt())
    assert cli.main(["fail"]) == 130
    assert capsys.readouterr().err == "tfctr: interrupted\n"


def test_reader_that_leaves_early():
    """`tfctr ... | head -1` ends without a traceback."""
    script = f"{sys.executable} -m tfctr.cli.main passes | head -c 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
