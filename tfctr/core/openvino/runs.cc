// Calls: which variant runs them, and how: over the caller's memory, in pieces of it, or with the rows filled up.
#include <algorithm>
#include <cstring>

#include "tfctr/core/openvino/openvino_engine.h"
#include "tfctr/core/storage/json.h"

namespace tfctr {
namespace {

constexpr int64_t kDynamic = 0;

ov::Shape ShapeOf(const int64_t* dims, size_t rank) {
  ov::Shape shape(rank);
  for (size_t d = 0; d < rank; ++d) shape[d] = static_cast<size_t>(dims[d]);
  return shape;
}

// Memory that OpenVINO need not have: an empty tensor has none.
void* NeverNull(const void* data) {
  static int64_t nothing[8] = {};
  return data == nullptr ? nothing : const_cast<void*>(data);
}

bool FirstIs(const EngineTensor& tensor, int open) { return !tensor.dims.empty() && tensor.dims[0].open == open; }

// Rows [first, first + rows) of a call, over the same memory.
class Piece {
 public:
  Piece(const EngineSpec& spec, int rows_open, int64_t first, int64_t rows, const EngineCall& call)
      : sizes_(call.open_sizes), outputs_(call.outputs), output_dims_(call.dims) {
    sizes_[static_cast<size_t>(rows_open)] = rows;
    const auto offset = [first](const EngineTensor& tensor, const int64_t* dims) {
      uint64_t bytes = DTypeSize(tensor.dtype) * static_cast<uint64_t>(first);
      for (size_t d = 1; d < tensor.dims.size(); ++d) bytes *= static_cast<uint64_t>(dims[d]);
      return bytes;
    };
    inputs_.assign(call.inputs, call.inputs + spec.inputs.size());
    input_dims_.reserve(inputs_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!FirstIs(spec.inputs[i], rows_open)) continue;
      InputView& view = inputs_[i];
      view.data = static_cast<const uint8_t*>(view.data) + offset(spec.inputs[i], view.dims);
      input_dims_.emplace_back(view.dims, view.dims + view.rank);
      input_dims_.back()[0] = rows;
      view.dims = input_dims_.back().data();
    }
    for (size_t k = 0; k < outputs_.size(); ++k) {
      if (!FirstIs(spec.outputs[k], rows_open)) continue;
      outputs_[k] = static_cast<uint8_t*>(outputs_[k]) + offset(spec.outputs[k], output_dims_[k].data());
      output_dims_[k][0] = rows;
    }
  }
  EngineCall call() const { return {inputs_.data(), outputs_, output_dims_, sizes_}; }

 private:
  std::vector<int64_t> sizes_;
  std::vector<InputView> inputs_;
  std::vector<std::vector<int64_t>> input_dims_;
  std::vector<void*> outputs_;
  std::vector<std::vector<int64_t>> output_dims_;
};

}  // namespace

Variant* OpenVinoEngine::VariantOf(int64_t bucket) const {
  for (const auto& variant : variants_) {
    if (variant->rows() == bucket) return variant.get();
  }
  return nullptr;
}

Status OpenVinoEngine::RunChecked(const EngineCall& call) {
  if (rows_open_ < 0) return RunIn(kDynamic, 0, call);
  const int64_t rows = call.open_sizes[static_cast<size_t>(rows_open_)];
  const bool users_fit = users_open_ < 0 || call.open_sizes[static_cast<size_t>(users_open_)] == options_.users;
  if (!users_fit) return RunIn(options_.dynamic ? kDynamic : -1, rows, call);
  const int64_t whole = options_.WholePieces(rows);
  return whole > 0 ? RunPieces(whole, rows, call) : RunIn(options_.BucketFor(rows), rows, call);
}

Status OpenVinoEngine::RunPieces(int64_t whole, int64_t rows, const EngineCall& call) {
  for (int64_t k = 0; k <= whole; ++k) {
    const int64_t first = k * options_.chunk;
    const int64_t size = k < whole ? options_.chunk : rows - first;
    const Piece piece(spec(), rows_open_, first, size, call);
    TFCTR_RETURN_IF_ERROR(RunIn(options_.BucketFor(size), size, piece.call()));
  }
  return Status::Ok();
}

Status OpenVinoEngine::RunIn(int64_t bucket, int64_t rows, const EngineCall& call) {
  Variant* variant = VariantOf(bucket);
  if (variant == nullptr) {
    std::string text = "no variant for " + std::to_string(rows) + " rows";
    if (users_open_ >= 0) {
      text += " and " + std::to_string(call.open_sizes[static_cast<size_t>(users_open_)]) + " users";
    }
    return Status::Invalid(text + ": the options {\"dynamic\": false} leave buckets up to " +
                           std::to_string(options_.buckets.back()) + " rows");
  }
  Lease lease(variant);
  variant->runs.fetch_add(1, std::memory_order_relaxed);
  const int64_t filled = bucket != kDynamic ? bucket : fills_up_ ? OpenVinoOptions::FilledRows(rows) : rows;
  if (filled == rows) return RunExactly(call, bucket == kDynamic, &lease.context());
  variant->padded_runs.fetch_add(1, std::memory_order_relaxed);
  return RunFilledUp(call, rows, filled, &lease.context());
}

bool OpenVinoEngine::RowsComeFirst() const {
  if (rows_open_ < 0) return false;
  const auto first = [this](const EngineTensor& tensor) {
    for (size_t d = 1; d < tensor.dims.size(); ++d) {
      if (tensor.dims[d].open == rows_open_) return false;
    }
    return true;
  };
  return std::all_of(spec().inputs.begin(), spec().inputs.end(), first) &&
         std::all_of(spec().outputs.begin(), spec().outputs.end(), first);
}

// Layers that ran, in OpenVINO's order; it says how long each took, not when.
void OpenVinoEngine::KeepLayers(const ov::InferRequest& request) const {
  std::string text = "[";
  for (const ov::ProfilingInfo& layer : request.get_profiling_info()) {
    if (layer.status != ov::ProfilingInfo::Status::EXECUTED) continue;
    text += (text.size() > 1 ? ",{\"name\":" : "{\"name\":") + JsonText(layer.node_name) +
            ",\"type\":" + JsonText(layer.node_type) + ",\"kernel\":" + JsonText(layer.exec_type) +
            ",\"us\":" + std::to_string(layer.real_time.count()) + '}';
  }
  std::lock_guard<std::mutex> lock(mutex_);
  layers_ = text + ']';
}

Status OpenVinoEngine::RunExactly(const EngineCall& call, bool check_shapes, Context* context) const {
  return Guarded([&] {
    ov::InferRequest& request = context->request;
    for (size_t i = 0; i < spec().inputs.size(); ++i) {
      if (!context->has_input[i]) continue;
      const InputView& view = call.inputs[i];
      const ov::Output<const ov::Node>& port = context->inputs[i];
      request.set_tensor(port, ov::Tensor(port.get_element_type(), ShapeOf(view.dims, static_cast<size_t>(view.rank)),
                                          NeverNull(view.data)));
    }
    for (size_t k = 0; k < spec().outputs.size(); ++k) {
      const ov::Output<const ov::Node>& port = context->outputs[k];
      request.set_tensor(port, ov::Tensor(port.get_element_type(), ShapeOf(call.dims[k].data(), call.dims[k].size()),
                                          NeverNull(call.outputs[k])));
    }
    request.infer();
    if (keeps_layers_) KeepLayers(request);
    if (!check_shapes) return Status::Ok();
    for (size_t k = 0; k < spec().outputs.size(); ++k) {
      const ov::Shape expected = ShapeOf(call.dims[k].data(), call.dims[k].size());
      const ov::Tensor got = request.get_tensor(context->outputs[k]);
      if (got.get_shape() != expected) {
        return Status::Invalid("the model gives output '" + spec().outputs[k].name + "' the shape " +
                               got.get_shape().to_string() + ", expected " + expected.to_string() + " of " +
                               spec().DimsText(spec().outputs[k]));
      }
    }
    return Status::Ok();
  });
}

// What has rows first is copied into tensors of `filled` rows (the rest zero), and back.
Status OpenVinoEngine::RunFilledUp(const EngineCall& call, int64_t rows, int64_t filled, Context* context) const {
  return Guarded([&] {
    ov::InferRequest& request = context->request;
    const auto with_rows = [filled](const int64_t* dims, size_t rank) {
      ov::Shape shape = ShapeOf(dims, rank);
      shape[0] = static_cast<size_t>(filled);
      return shape;
    };
    for (size_t i = 0; i < spec().inputs.size(); ++i) {
      if (!context->has_input[i]) continue;
      const InputView& view = call.inputs[i];
      const ov::Output<const ov::Node>& port = context->inputs[i];
      const size_t rank = static_cast<size_t>(view.rank);
      if (!FirstIs(spec().inputs[i], rows_open_)) {
        request.set_tensor(port, ov::Tensor(port.get_element_type(), ShapeOf(view.dims, rank), NeverNull(view.data)));
        continue;
      }
      const ov::Shape shape = with_rows(view.dims, rank);
      ov::Tensor& padded = context->padded_inputs[i];
      if (!padded || padded.get_shape() != shape) padded = ov::Tensor(port.get_element_type(), shape);
      const size_t used = padded.get_byte_size() / static_cast<size_t>(filled) * static_cast<size_t>(rows);
      uint8_t* to = static_cast<uint8_t*>(padded.data());
      if (used > 0) std::memcpy(to, view.data, used);
      std::memset(to + used, 0, padded.get_byte_size() - used);
      request.set_tensor(port, padded);
    }
    for (size_t k = 0; k < spec().outputs.size(); ++k) {
      const ov::Output<const ov::Node>& port = context->outputs[k];
      if (!FirstIs(spec().outputs[k], rows_open_)) {
        request.set_tensor(port, ov::Tensor(port.get_element_type(), ShapeOf(call.dims[k].data(), call.dims[k].size()),
                                            NeverNull(call.outputs[k])));
        continue;
      }
      const ov::Shape shape = with_rows(call.dims[k].data(), call.dims[k].size());
      ov::Tensor& padded = context->padded_outputs[k];
      if (!padded || padded.get_shape() != shape) padded = ov::Tensor(port.get_element_type(), shape);
      request.set_tensor(port, padded);
    }
    request.infer();
    for (size_t k = 0; k < spec().outputs.size(); ++k) {
      if (!FirstIs(spec().outputs[k], rows_open_)) continue;
      const ov::Tensor& padded = context->padded_outputs[k];
      const ov::Shape expected = with_rows(call.dims[k].data(), call.dims[k].size());
      const ov::Shape got = request.get_tensor(context->outputs[k]).get_shape();
      if (got != expected) {
        return Status::Invalid("the model gives output '" + spec().outputs[k].name + "' the shape " + got.to_string() +
                               " for a batch filled up to " + std::to_string(filled) + " rows, expected " +
                               expected.to_string());
      }
      const size_t used = padded.get_byte_size() / static_cast<size_t>(filled) * static_cast<size_t>(rows);
      if (used > 0) std::memcpy(call.outputs[k], padded.data(), used);
    }
    return Status::Ok();
  });
}

}  // namespace tfctr
