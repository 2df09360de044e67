"""The TensorFlow wheel of the Python named by TFCTR_PYTHON, as a repository with its headers and its framework library."""

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "framework",
    srcs = ["libtensorflow_framework.so.2"],
    hdrs = glob(["include/**"]),
    defines = ["_GLIBCXX_USE_CXX11_ABI=1", "EIGEN_MAX_ALIGN_BYTES=64"],
    includes = ["include"],
)
"""

_FIND = "import importlib.util as u, os; print(os.path.dirname(u.find_spec('tensorflow').origin))"
_VERSION = "import importlib.metadata as m; print(m.version('tensorflow'))"

def _ask(context, python, code):
    answer = context.execute([python, "-c", code])
    if answer.return_code:
        fail("%s cannot find TensorFlow: %s" % (python, answer.stderr))
    return answer.stdout.strip()

def _tensorflow_wheel(context):
    python = context.os.environ.get("TFCTR_PYTHON", "python3")
    folder = _ask(context, python, _FIND)
    context.symlink(folder + "/include", "include")
    context.symlink(folder + "/libtensorflow_framework.so.2", "libtensorflow_framework.so.2")
    context.file("BUILD", _BUILD)
    ours = [line for line in context.read(context.attr.version_py).split("\n") if line.startswith("__version__")]
    context.file("version.bzl", "TENSORFLOW_VERSION = \"%s\"\nTFCTR_VERSION = %s\n" % (
        _ask(context, python, _VERSION),
        ours[0].split("=")[1].strip(),
    ))

tensorflow_wheel = repository_rule(
    implementation = _tensorflow_wheel,
    attrs = {"version_py": attr.label(default = "@tfctr//:tfctr/version.py", allow_single_file = True)},
    environ = ["TFCTR_PYTHON"],
    local = True,
)
