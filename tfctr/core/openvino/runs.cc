// A call in a context: over the caller's memory, or with its rows filled up to the variant's.
#include <algorithm>
#include <cstring>

#include "tfctr/core/openvino/openvino_engine.h"

namespace tfctr {
namespace {

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

}  // namespace

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

// What has rows first is copied into tensors of the variant's rows (the rest zero), and back.
Status OpenVinoEngine::RunFilledUp(const EngineCall& call, int64_t rows, int64_t bucket, Context* context) const {
  return Guarded([&] {
    ov::InferRequest& request = context->request;
    const auto with_rows = [bucket](const int64_t* dims, size_t rank) {
      ov::Shape shape = ShapeOf(dims, rank);
      shape[0] = static_cast<size_t>(bucket);
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
      const size_t used = padded.get_byte_size() / static_cast<size_t>(bucket) * static_cast<size_t>(rows);
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
      const size_t used = padded.get_byte_size() / static_cast<size_t>(bucket) * static_cast<size_t>(rows);
      if (used > 0) std::memcpy(call.outputs[k], padded.data(), used);
    }
    return Status::Ok();
  });
}

}  // namespace tfctr
