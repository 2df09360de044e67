// Which provider runs the dense towers of a model: rewriting the TfctrDenseEngine nodes of a graph when it is loaded.
// Thread-safety: plain functions and values.
#ifndef TFCTR_CORE_RUNTIME_ENGINE_CHOICE_H_
#define TFCTR_CORE_RUNTIME_ENGINE_CHOICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tfctr {

// Empty strings and 0 leave the graph's own.
struct EngineChoice {
  std::string provider;
  std::string precision;
  std::string options;  // JSON; belongs to a provider, so a choice of another provider without options means "{}"
  int threads = 0;
};

// Sets these attributes on every TfctrDenseEngine node of `graph` and of its functions.
void RewriteEngines(const EngineChoice& choice, tensorflow::GraphDef* graph);

// One dense tower of a graph.
struct EngineUse {
  std::string node;
  std::string label;
  std::string provider;
  std::string precision;
  int64_t threads = 1;
  std::string node_def;  // serialised, after the choice
};

std::vector<EngineUse> EnginesOf(const tensorflow::GraphDef& graph);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_ENGINE_CHOICE_H_
