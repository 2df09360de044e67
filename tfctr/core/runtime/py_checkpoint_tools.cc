// Python face of what the checkpoint tools need: a bundle written piece by piece, running checksums, and what a table's
// configuration means (size of a row, first values of keys).
//
// Thread-safety: a CheckpointWriter is used by one thread at a time; the functions are pure.
// Cost: a piece is copied once; memory is one piece.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tfctr/core/embedding/config.h"
#include "tfctr/core/runtime/checkpoint_index.h"
#include "tfctr/core/runtime/py_storage_support.h"
#include "tfctr/core/storage/crc32c.h"

namespace py = pybind11;

namespace tfctr {
namespace {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr uint64_t kIndexEntryBytes = 16;  // of a row, as EvictionCount counts

TensorShape ShapeOf(const std::vector<int64_t>& dims) {
  TensorShape shape;
  if (!TensorShape::BuildTensorShape(dims, &shape).ok()) throw py::value_error("this is no shape of a tensor");
  return shape;
}

DataType DataTypeOf(const std::string& name) {
  for (int number = 1; number < tensorflow::DataType_ARRAYSIZE; ++number) {
    const auto dtype = static_cast<DataType>(number);
    if (tensorflow::DataType_IsValid(number) && tensorflow::DataTypeSize(dtype) > 0 && TypeName(dtype) == name) {
      return dtype;
    }
  }
  throw py::value_error("arrays of " + name + " can't be written into a checkpoint");
}

Tensor TensorOf(const py::array& array) {
  const py::array packed = py::array::ensure(array, py::array::c_style);
  if (!packed) throw py::error_already_set();
  const std::vector<int64_t> dims(packed.shape(), packed.shape() + packed.ndim());
  Tensor tensor(DataTypeOf(py::str(packed.dtype().attr("name"))), ShapeOf(dims));
  if (packed.nbytes() != static_cast<py::ssize_t>(tensor.tensor_data().size())) {
    throw py::value_error("an array's bytes are not those of its dtype");
  }
  if (packed.nbytes() > 0) std::memcpy(tensor.data(), packed.data(), static_cast<size_t>(packed.nbytes()));
  return tensor;
}

// Writes tensors into PREFIX.index and PREFIX.data-00000-of-00001. Both have temporary names until `finish`.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(const py::object& prefix)
      : prefix_(PathOf(prefix)),
        writer_(std::make_unique<tensorflow::BundleWriter>(tensorflow::Env::Default(), prefix_)) {
    Checked(writer_->status());
  }

  void Add(const std::string& key, const py::array& array) { Checked(Open().Add(key, TensorOf(array))); }

  void AddText(const std::string& key, const py::bytes& text) {
    Tensor tensor(tensorflow::DT_STRING, TensorShape({}));
    tensor.scalar<tensorflow::tstring>()() = std::string(text);
    Checked(Open().Add(key, tensor));
  }

  // Rows [first, first + length of array) of a tensor of `shape`.
  void AddSlice(const std::string& key, const std::vector<int64_t>& shape, int64_t first, const py::array& array) {
    const Tensor tensor = TensorOf(array);
    const TensorShape whole = ShapeOf(shape);
    if (tensor.dims() < 1 || tensor.dims() != whole.dims() || first < 0 ||
        first + tensor.dim_size(0) > whole.dim_size(0)) {
      throw py::value_error("a slice of '" + key + "' lies outside its shape");
    }
    tensorflow::TensorSlice slice(whole.dims());
    slice.set_start(0, first);
    slice.set_length(0, tensor.dim_size(0));
    Checked(Open().AddSlice(key, whole, slice, tensor));
  }

  void Finish() {
    const absl::Status finished = Open().Finish();
    writer_.reset();
    Checked(finished);
  }

 private:
  tensorflow::BundleWriter& Open() {
    if (!writer_) throw py::value_error("the checkpoint '" + prefix_ + "' is finished");
    return *writer_;
  }

  void Checked(const absl::Status& status) const {
    if (status.ok()) return;
    const std::string message = "writing the checkpoint '" + prefix_ + "': " + std::string(status.message());
    const bool full = absl::IsResourceExhausted(status);
    Raise(absl::IsInvalidArgument(status) ? Status::Invalid(message)
          : full                          ? Status::NoSpace(message)
                                          : Status::Io(message));
  }

  const std::string prefix_;
  std::unique_ptr<tensorflow::BundleWriter> writer_;
};

uint32_t Extend(uint32_t crc, const py::buffer& data) {
  const py::buffer_info info = data.request();
  const size_t bytes = static_cast<size_t>(info.size * info.itemsize);
  py::gil_scoped_release release;
  return Crc32cExtend(crc, info.ptr, bytes);
}

py::dict Layout(const std::string& config_json) {
  const EvConfig config = Unwrap(ParseEvConfig(config_json));
  const RowLayout layout = Unwrap(LayoutOf(config));
  py::list slots;
  for (const SlotSpec& slot : layout.slots()) slots.append(py::make_tuple(slot.name, slot.width, slot.initial));
  py::dict dict;
  dict["slots"] = slots;
  dict["row_bytes"] = layout.stride();
  dict["indexed_row_bytes"] = layout.stride() + kIndexEntryBytes;
  dict["counter_bytes"] = Unwrap(CounterBytes(config));
  return dict;
}

using Keys = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

py::array_t<float> InitialRows(const std::string& config_json, const Keys& keys) {
  const EvConfig config = Unwrap(ParseEvConfig(config_json));
  const auto n = static_cast<size_t>(keys.size());
  py::array_t<float> rows({static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(config.dim)});
  std::vector<float*> places(n);
  for (size_t i = 0; i < n; ++i) places[i] = rows.mutable_data() + i * static_cast<size_t>(config.dim);
  const int64_t* first = keys.data();
  {
    py::gil_scoped_release release;
    RowInitializer(config.initializer, config.dim).Fill(first, n, places.data());
  }
  return rows;
}

}  // namespace

void BindCheckpointTools(py::module_& module) {
  py::class_<CheckpointWriter>(module, "CheckpointWriter",
                               "Writes a checkpoint (tensor bundle) piece by piece; not synced to the disk.")
      .def(py::init<const py::object&>(), py::arg("prefix"))
      .def("add", &CheckpointWriter::Add, py::arg("key"), py::arg("array"), "Writes a whole tensor.")
      .def("add_text", &CheckpointWriter::AddText, py::arg("key"), py::arg("text"), "Writes a string scalar.")
      .def("add_slice", &CheckpointWriter::AddSlice, py::arg("key"), py::arg("shape"), py::arg("first"),
           py::arg("array"), "Writes the rows from `first` on of a tensor of `shape`; slices must cover it.")
      .def("finish", &CheckpointWriter::Finish, "Writes the index and gives the files their names.");
  module.def("crc32c_extend", &Extend, py::arg("crc"), py::arg("data"),
             "The (unmasked) checksum of the bytes that `crc` covers, followed by those of a buffer.");
  module.def("embedding_layout", &Layout, py::arg("config"),
             "What rows of an embedding variable's configuration (JSON) take: slots as (name, width, initial value), "
             "row_bytes; with its index entry indexed_row_bytes; counter_bytes of a key that is not admitted.");
  module.def("initial_rows", &InitialRows, py::arg("config"), py::arg("keys"),
             "First values of keys, float32 [n, dim], by an embedding variable's configuration (JSON).");
}

}  // namespace tfctr
