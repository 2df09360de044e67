// TfctrVersion: which tfctr and which TensorFlow headers this library was built from. `tfctr doctor` compares both with
// what is installed, so that a library left over from another checkout is named instead of failing somewhere later.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace tfctr {

REGISTER_OP("TfctrVersion")
    .Output("tfctr: string")
    .Output("tensorflow: string")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    });

}  // namespace tfctr
