// Python face of the checkpoint readers.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tfctr/core/lookup/narrow_hash_file.h"
#include "tfctr/core/lookup/narrow_table.h"
#include "tfctr/core/runtime/checkpoint_index.h"
#include "tfctr/core/runtime/py_progress.h"
#include "tfctr/core/runtime/py_storage_support.h"
#include "tfctr/core/runtime/table_parts.h"
#include "tfctr/core/storage/dtype.h"
#include "tfctr/core/storage/file_format.h"

namespace py = pybind11;

namespace tfctr {
namespace {

py::dict ExtentDict(const CheckpointExtent& extent) {
  py::dict dict;
  dict["shard"] = extent.shard_path;
  dict["offset"] = extent.offset;
  dict["size"] = extent.bytes;
  dict["crc32c"] = extent.masked_crc32c;
  return dict;
}

py::list ReadIndex(const py::object& prefix) {
  const CheckpointIndex index = Unwrap(ReadCheckpointIndex(PathOf(prefix)));
  py::list entries;
  for (const auto& [key, entry] : index) {
    py::dict dict = entry.partitioned ? py::dict() : ExtentDict(entry.slices[0].extent);
    dict["key"] = key;
    dict["dtype"] = TypeName(entry.dtype);
    dict["shape"] = py::tuple(py::cast(entry.shape));
    py::list slices;
    uint64_t bytes = 0;
    for (const CheckpointSlice& slice : entry.slices) {
      bytes += slice.extent.bytes;
      if (!entry.partitioned) continue;
      py::dict part = ExtentDict(slice.extent);
      part["start"] = py::tuple(py::cast(slice.start));
      part["length"] = py::tuple(py::cast(slice.length));
      slices.append(part);
    }
    dict["bytes"] = bytes;
    dict["slices"] = slices;
    entries.append(dict);
  }
  return entries;
}

py::dict CopyTensor(const py::object& prefix_object, const std::string& key, const py::object& out_object,
                    const std::string& name, const py::object& progress) {
  const std::string prefix = PathOf(prefix_object);
  const std::string out_path = PathOf(out_object);
  RunCopy(progress, [&](const CopyProgress& report) { return CopyTensorToTable(prefix, key, out_path, name, report); });
  return FileInfo(out_path);
}

py::dict CopyPart(const py::object& prefix_object, const std::string& key, const std::vector<int64_t>& start,
                  const std::vector<int64_t>& length, const py::object& out_object, const std::string& name,
                  const py::object& progress) {
  const std::string prefix = PathOf(prefix_object);
  const std::string out_path = PathOf(out_object);
  RunCopy(progress, [&](const CopyProgress& report) {
    return CopyPartToTable(prefix, key, start, length, out_path, name, report);
  });
  return FileInfo(out_path);
}

py::dict Merge(const std::vector<py::object>& parts, const py::object& out_object, const std::string& name,
               bool interleave) {
  std::vector<std::string> paths;
  for (const py::object& part : parts) paths.push_back(PathOf(part));
  const std::string out_path = PathOf(out_object);
  const MergeOrder order = interleave ? MergeOrder::kInterleave : MergeOrder::kConcatenate;
  RunCopy(py::none(), [&](const CopyProgress&) { return MergeTables(paths, order, out_path, name); });
  return FileInfo(out_path);
}

py::dict Narrow(const py::object& in_object, const std::string& storage, const py::object& out_object,
                const py::object& progress) {
  const std::string in_path = PathOf(in_object);
  const std::string out_path = PathOf(out_object);
  NarrowResult result;
  RunCopy(progress, [&](const CopyProgress& report) {
    Result<NarrowResult> narrowed = NarrowTable(in_path, DTypeFromName(storage), out_path, report);
    if (narrowed.ok()) result = narrowed.value();
    return narrowed.status();
  });
  py::dict info = FileInfo(out_path);
  info["max_abs_error"] = result.max_abs_error;
  return info;
}

py::dict NarrowHash(const py::object& in_object, const std::string& storage, const py::object& out_object,
                    const py::object& progress) {
  const std::string in_path = PathOf(in_object);
  const std::string out_path = PathOf(out_object);
  NarrowResult result;
  RunCopy(progress, [&](const CopyProgress& report) {
    Result<NarrowResult> narrowed = NarrowHashFile(in_path, DTypeFromName(storage), out_path, report);
    if (narrowed.ok()) result = narrowed.value();
    return narrowed.status();
  });
  py::dict info;
  info["fingerprint"] = Unwrap(Container::Open(out_path))->fingerprint();
  info["max_abs_error"] = result.max_abs_error;
  return info;
}

py::object NumpyDType(const std::string& key, tensorflow::DataType dtype) {
  if (dtype == tensorflow::DT_BFLOAT16) {
    return py::module_::import("numpy").attr("dtype")(py::module_::import("ml_dtypes").attr("bfloat16"));
  }
  std::string name = TypeName(dtype);
  const bool known = DTypeFromName(name) != DType::kInvalid || name == "complex64" || name == "complex128";
  if (!known) throw py::value_error("tensor '" + key + "' is " + name + ", which has no NumPy form here");
  return py::module_::import("numpy").attr("dtype")(name);
}

py::object ReadTensorArray(const py::object& prefix_object, const std::string& key) {
  const std::string prefix = PathOf(prefix_object);
  Result<tensorflow::Tensor> read = Status::Invalid("not read");
  {
    py::gil_scoped_release release;
    read = ReadTensor(prefix, key);
  }
  const tensorflow::Tensor tensor = Unwrap(std::move(read));
  const auto dims = tensor.shape().dim_sizes();
  const std::vector<int64_t> shape(dims.begin(), dims.end());
  const py::object numpy = py::module_::import("numpy");
  if (tensor.dtype() == tensorflow::DT_STRING) {
    py::object array = numpy.attr("empty")(py::tuple(py::cast(shape)), "object");
    py::object flat = array.attr("reshape")(-1);  // a view: the array is contiguous
    const auto strings = tensor.flat<tensorflow::tstring>();
    for (int64_t i = 0; i < strings.size(); ++i) flat[py::int_(i)] = py::bytes(strings(i).data(), strings(i).size());
    return array;
  }
  py::array array = numpy.attr("empty")(py::tuple(py::cast(shape)), NumpyDType(key, tensor.dtype()));
  const auto bytes = tensor.tensor_data();
  if (!bytes.empty()) std::memcpy(array.mutable_data(), bytes.data(), bytes.size());
  return array;
}

}  // namespace

void BindCheckpoint(py::module_& module) {
  module.def("read_checkpoint_index", &ReadIndex, py::arg("prefix"),
             "Entries of a checkpoint: key, dtype, shape, bytes and either shard, offset, size, crc32c (masked) or "
             "slices with start and length of each part.");
  module.def("copy_tensor_to_table", &CopyTensor, py::arg("prefix"), py::arg("tensor_key"), py::arg("out_path"),
             py::arg("name"), py::arg("progress") = py::none(),
             "Copies a tensor, or a partitioned one merged by rows, from a checkpoint into a table file; checksums "
             "checked, memory bounded. progress(bytes) is called per block. Returns the table's file_info.");
  module.def("copy_part_to_table", &CopyPart, py::arg("prefix"), py::arg("tensor_key"), py::arg("start"),
             py::arg("length"), py::arg("out_path"), py::arg("name"), py::arg("progress") = py::none(),
             "Copies one stored part of a partitioned tensor into a table file; returns its file_info.");
  module.def(
      "merge_tables", &Merge, py::arg("parts"), py::arg("out_path"), py::arg("name"), py::arg("interleave"),
      "Merges table files by rows: one after the other, or interleaved (row r from part r % P); returns file_info.");
  module.def("narrow_table", &Narrow, py::arg("in_path"), py::arg("storage"), py::arg("out_path"),
             py::arg("progress") = py::none(),
             "Writes a float32 table file again as float16, bfloat16 or int8 (uint8 [V, 4 + D]: a float32 scale, then "
             "D int8); ValueError names the row that can't be stored so. Returns file_info with max_abs_error.");
  module.def(
      "narrow_hash_table", &NarrowHash, py::arg("in_path"), py::arg("storage"), py::arg("out_path"),
      py::arg("progress") = py::none(),
      "Writes the rows of a float32 hash file again as float16, bfloat16 or int8; ValueError names the key whose "
      "row can't be stored so. Returns fingerprint and max_abs_error.");
  module.def("read_tensor", &ReadTensorArray, py::arg("prefix"), py::arg("key"),
             "Reads one tensor of a checkpoint into an array (strings: object array of bytes).");
}

}  // namespace tfctr
