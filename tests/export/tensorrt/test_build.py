"""Plans by the library that is installed (no GPU needed with tensorrt_rtx), and by one that records and fails."""

import numpy as np
import pytest

from export.fp16.convert import Fp16Options, to_fp16
from export.tensorrt.build import BuildError, build
from export.tensorrt.library import Library, installed, load
from export.tensorrt.options import BuildOptions, Profile, Range, batch_profile, input_shapes, recipe
from tests.export.fp16.graphs import layer_norm, mlp, model, naive, node, value, weights
from tests.export.onnx.exports import exported
from tests.export.tensorrt.fake import Fake
from tests.export.towers import TOWERS
from tfctr.errors import UsageError


@pytest.fixture(scope="module")
def library():
    if installed() is None:
        pytest.skip("neither tensorrt nor tensorrt_rtx is installed")
    found = load()
    if not found.targets:
        pytest.skip(f"{found.label} builds for the GPU of its machine, and this one has none")
    return found


def half(source, *clamped):
    return to_fp16(source, Fp16Options(clamped=clamped)).model


@pytest.mark.parametrize("name", TOWERS)
def test_five_towers(name, library):
    names = ("history", "target") if name == "din" else ("embeddings",)
    target = library.targets[-1]
    plans = build(half(exported(name).model, *names), target)
    assert list(plans) == [target] and len(plans[target]) > 100_000
    assert plans.recipes[target]["target"] == target and not plans.isolated
    # "Detected layernorm nodes in FP16" among others: our islands leave nothing to warn of.
    assert plans.warnings == ()


def test_every_target(library):
    plans = build(half(mlp(), "x"), "all")
    assert tuple(plans) == library.targets and len(plans) == len(set(map(bytes, plans.values())))


def test_fp32_tower(library):
    assert build(mlp(), library.targets[-1])


def test_fp32_matrix_products_are_not_for_turing(library):
    if "sm75" not in library.targets:
        pytest.skip(f"{library.label} does not build for sm75")
    with pytest.raises(BuildError, match="for sm75: .*MatMul_h.*FP32 GEMM is not supported"):
        build(mlp(), "sm75")


def test_warnings_are_kept(library):
    """A LayerNorm in FP16 is what the library warns of."""
    if library.name != "tensorrt_rtx":
        pytest.skip("the words of this warning are known for tensorrt_rtx only")
    plans = build(naive(layer_norm()), library.targets[0])
    assert any("layernorm" in text.lower() for text in plans.warnings)


def test_two_profiles(library):
    options = BuildOptions(profiles=(batch_profile(1, 32, 64), batch_profile(64, 512, 1024)))
    plans = build(half(mlp(), "x"), library.targets[0], options)
    assert plans.recipes[library.targets[0]]["profiles"][1]["N"] == (64, 512, 1024)


def test_users_and_rows(library):
    source = model(
        [
            node("MatMul", ["user", "w"], "u"),
            node("Gather", ["u", "row_to_user"], "r", axis=0),
            node("MatMul", ["item", "w"], "i"),
            node("Add", ["r", "i"], "h"),
            node("Sigmoid", ["h"], "p"),
        ],
        [value("user", "U", 8), value("item", "N", 8), value("row_to_user", "N", kind="int64")],
        [value("p", "N", 4)],
        {"w": weights(8, 4)},
    )
    assert build(half(source, "user", "item"), library.targets[0])


def test_what_the_library_refuses_is_quoted(library):
    source = model([node("Frobnicate", ["x"], "y")], [value("x", "N")], [value("y", "N")])
    with pytest.raises(BuildError, match=f"{library.name}.*does not take the tower for sm.*Frobnicate"):
        build(source, library.targets[0])


def test_process_of_its_own(library):
    plans = build(half(mlp(), "x"), library.targets[0], isolate=True)
    assert plans.isolated and len(plans[library.targets[0]]) > 10_000


def test_refit_without_a_gpu_leaves_this_process_alone(library):
    """REFIT needs a CUDA driver, and its failure spoils a process for all builds to come."""
    if library.name != "tensorrt_rtx":
        pytest.skip("seen with tensorrt_rtx only")
    target, found, error = library.targets[0], None, ""
    try:
        found = build(half(mlp(), "x"), target, BuildOptions(refit=True))
    except BuildError as refused:
        error = str(refused)
    if found is None:
        assert "builds no plan" in error and "CUDA" in error
    else:
        assert found.isolated and found.recipes[target]["flags"] == ["REFIT"]
    assert build(half(mlp(), "x"), target)


def test_unknown_target(library):
    with pytest.raises(UsageError, match="unknown target 'sm1'"):
        build(mlp(), "sm1")


def fake_library(**kwargs):
    fake = Fake(**kwargs)
    return fake, Library(fake, f"fake{id(fake)}", "11.4.0", ("sm90",))


def test_what_the_builder_is_told():
    fake, library = fake_library()
    options = BuildOptions(
        profiles=(batch_profile(1, 8, 16), batch_profile(16, 32, 64)),
        optimisation_level=4,
        workspace_bytes=1 << 20,
        refit=True,
    )
    plans = build(mlp(), "sm90", options, library=library, isolate=False)
    assert plans["sm90"] == b"plan"
    assert fake.calls == [
        ("network", 1 << 1),
        ("set_flag", "refit-flag"),
        ("builder_optimization_level", 4),
        ("workspace", 1 << 20),
        ("profile", {"x": ((1, 16), (8, 16), (16, 16))}),
        ("profile", {"x": ((16, 16), (32, 16), (64, 16))}),
    ]


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        ("parse", "does not take the tower for sm90: no importer for Frobnicate"),
        ("profile", "refuses a batch profile for sm90: its log is empty"),
        ("build", "builds no plan for sm90: warning: it is late; error: out of luck; error: worse"),
    ],
)
def test_every_null_is_an_error_with_the_last_messages(fail, words):
    says = [("INFO", "chatter"), ("ERROR", "out of luck"), ("WARNING", "it is late"), ("INTERNAL_ERROR", "worse")]
    _, library = fake_library(fail=fail, says=says)
    with pytest.raises(BuildError, match=words):
        build(mlp(), "sm90", library=library)


def test_recipe_holds_all_but_the_model():
    _, library = fake_library()
    one = recipe(library, "sm90", BuildOptions())
    assert one["version"] == "11.4.0" and one["profiles"] == [{"N": (1, 256, 1024), "U": (1, 1, 64)}]
    others = [
        BuildOptions(refit=True),
        BuildOptions(optimisation_level=5),
        BuildOptions(workspace_bytes=5),
        BuildOptions(profiles=(batch_profile(most_rows=512),)),
    ]
    assert all(recipe(library, "sm90", other) != one for other in others)
    assert recipe(library, "sm90", BuildOptions(timeout_s=5)) == one


def test_open_dimensions():
    source = model(
        [node("MatMul", ["x", "w"], "y")],
        [value("x", "N", "time", 4), value("z", 3)],
        [value("y", "N", "time", 2)],
        {"w": weights(4, 2)},
    )
    profile = batch_profile(1, 2, 3, time=Range(5, 6, 7))
    assert input_shapes(source, profile) == {"x": ((1, 5, 4), (2, 6, 4), (3, 7, 4))}
    with pytest.raises(UsageError, match="input 'x', axis 1: the batch profile has no sizes for 'time'; it has N, U"):
        input_shapes(source, batch_profile())
    source.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    with pytest.raises(UsageError, match="an unnamed dimension"):
        input_shapes(source, profile)


@pytest.mark.parametrize("sizes", [(0, 1, 2), (2, 1, 3), (1, 4, 3)])
def test_bad_ranges(sizes):
    with pytest.raises(UsageError, match="expected 1 <= least <= best <= most"):
        Range(*sizes)


def test_bad_options():
    with pytest.raises(UsageError, match="no batch profile"):
        BuildOptions(profiles=())
    with pytest.raises(UsageError, match="optimisation level 9"):
        BuildOptions(optimisation_level=9)
    assert Profile({"N": Range(1, 2, 3)}).sizes["N"].most == 3
    assert np.isfinite(BuildOptions().timeout_s)
