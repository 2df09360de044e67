"""Options of a conversion that are wrong or contradict each other: exit 2, one line that names the flag, what came and
what was expected; nothing is written.
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest

from graph_opt.option_checks import check_options
from graph_opt.options import ConvertOptions
from tests.models.fixtures import Zoo
from tfctr.cli import common, convert_options
from tfctr.cli.main import main
from tfctr.errors import UsageError

BAD = [
    ("--user-features ,", ("--user-features ','", "empty name", "hist_*")),
    ("--user-features user,,item", ("--user-features", "empty name")),
    ("--user-features auto", ("--user-features auto", "--samples FILE")),
    ("--user-features-from-samples", ("--user-features", "--samples FILE")),
    ("--user-features auto,user_id --samples x.npz", ("--user-features user_id", "auto", "one of the two")),
    ("--user-features user_id --user-features-from-samples --samples x.npz", ("user_id", "one of the two")),
    ("--request-column session", ("--request-column session", "--samples FILE")),
    ("--request-column click --label click --samples x.npz", ("--request-column click", "--label")),
    ("--user-features u --disable split_user_item", ("--user-features", "split_user_item", "--disable")),
    ("--device-map /CPU:0", ("--device-map '/CPU:0'", "sparse=/CPU:0,dense=/GPU:0")),
    ("--device-map sparse=", ("--device-map 'sparse='", "PART=DEVICE")),
    ("--device-map sparse=/CPU:0,", ("--device-map", "PART=DEVICE")),
    ("--device-map tower=/GPU:0", ("--device-map tower=/GPU:0", "sparse and dense")),
    ("--device-map sparse=cpu", ("--device-map sparse=cpu", "/CPU:0")),
    ("--device-map dense=/GPU:x", ("--device-map dense=/GPU:x", "/CPU:0")),
    ("--device-map dense=/GPU:0,dense=/GPU:1", ("--device-map", "twice", "/GPU:0", "/GPU:1")),
    ("--device-map dense=/GPU:0 --disable place_devices", ("--device-map", "place_devices")),
    ("--device-map sparse=/CPU:0", ("--device-map", "dense=DEVICE")),
    ("--device-map sparse=/GPU:0,dense=/GPU:0", ("--device-map sparse=/GPU:0", "need a CPU")),
    ("--device-map dense=/NPX:0", ("--device-map dense=/NPX:0", "/CPU:0")),
    ("--force-placement", ("--force-placement", "--device-map")),
    ("--table-dtype fp8", ("--table-dtype", "fp8", "fp16")),
    ("--table-dtype FP16", ("--table-dtype", "FP16", "fp16")),
    ("--table-dtype fp16 --disable compress_tables", ("--table-dtype fp16", "compress_tables")),
    ("--table-dtype int8 --disable fuse_lookups", ("--table-dtype int8", "fuse_lookups")),
    ("--max-dp 0.1", ("--max-dp 0.1", "--table-dtype")),
    ("--table-dtype fp16 --max-dp nought", ("--max-dp", "nought", "1e-3")),
    ("--table-dtype fp16 --max-bias -1", ("--max-bias", "-1", "0 or more")),
    ("--table-dtype fp16 --max-auc-delta nan", ("--max-auc-delta", "nan", "0 or more")),
    ("--table-dtype fp16 --max-dp inf", ("--max-dp", "inf", "0 or more")),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_bad_values_and_conflicts(
    text: str, words: tuple[str, ...], zoo: Zoo, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # "-1" would look like an option of its own
    arguments = [word for word in text.replace("--max-bias -1", "--max-bias=-1").split(" ") if word]
    code = main(["convert", str(zoo("a_safe_sparse_one").path), str(tmp_path / "out"), *arguments])
    error = capfd.readouterr().err
    assert code == 2, error
    assert "Traceback" not in error
    for word in words:
        assert word in error.strip().splitlines()[-1], error
    assert list(tmp_path.iterdir()) == []


def parsed(*arguments: str, **more: Any) -> ConvertOptions:
    parser = argparse.ArgumentParser()
    common.add_model_options(parser, signature=False)
    convert_options.add_options(parser)
    convert_options.add_dense(parser)
    return convert_options.options_of(parser.parse_args(arguments), **more)


def test_values_reach_the_options() -> None:
    options = parsed(
        *("--user-features", "a, b*", "--user-features", "c,a"),
        *("--device-map", "sparse=/CPU:0", "--device-map", "dense=/device:GPU:1", "--force-placement"),
        *("--table-dtype", "int8", "--max-dp", "0", "--max-bias", "1e-3", "--max-auc-delta", "2"),
    )
    assert options.user_features == ("a", "b*", "c")
    assert options.device_map == {"sparse": "/CPU:0", "dense": "/device:GPU:1"}
    assert options.force_placement
    limits = (options.max_dp, options.max_bias, options.max_auc_delta)
    assert (options.table_dtype, *limits) == ("int8", 0.0, 1e-3, 2.0)
    assert not options.user_features_from_samples


def test_auto_and_its_flag_say_the_same() -> None:
    one = parsed("--user-features", "auto", "--request-column", "session", samples_path="x.npz")
    two = parsed("--user-features-from-samples", "--request-column", "session", samples_path="x.npz")
    assert one == two
    assert one.user_features_from_samples and one.request_column == "session" and one.user_features == ()


def test_without_options_everything_has_its_default() -> None:
    assert parsed() == ConvertOptions()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"table_dtype": "float16"}, "--table-dtype float16.*fp16"),
        ({"table_dtype": "fp16", "max_dp": True}, "--max-dp True"),
        ({"table_dtype": "fp16", "max_dp": "1"}, "--max-dp 1: expected a number"),
        ({"user_features": ("",)}, "--user-features.*empty"),
        ({"device_map": {"dense": ""}}, "--device-map dense="),
        ({"device_map": [("dense", "/GPU:0")]}, "device_map.*mapping"),
        ({"force_placement": True}, "--force-placement"),
    ],
)
def test_the_library_checks_as_the_command_does(fields: Mapping[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_options(dataclasses.replace(ConvertOptions(), **fields))
