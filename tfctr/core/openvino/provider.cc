// libtfctr_openvino.so registers its provider when it is loaded.
#include "tfctr/core/engines/engine.h"
#include "tfctr/core/openvino/openvino_engine.h"

namespace tfctr {
namespace {

const bool registered = [] {
  RegisterEngineProvider("openvino", &OpenVinoEngine::Open);
  return true;
}();

}  // namespace
}  // namespace tfctr
