#include "tfctr/core/runtime/engine_choice.h"

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tfctr {
namespace {

constexpr char kOp[] = "TfctrDenseEngine";

template <typename Graph, typename Visit>
void ForEach(Graph& graph, const Visit& visit) {
  const auto in = [&visit](auto& nodes) {
    for (auto& node : nodes) {
      if (node.op() == kOp) visit(node);
    }
  };
  if constexpr (std::is_const_v<Graph>) {
    in(graph.node());
    for (const auto& function : graph.library().function()) in(function.node_def());
  } else {
    in(*graph.mutable_node());
    for (auto& function : *graph.mutable_library()->mutable_function()) in(*function.mutable_node_def());
  }
}

std::string Text(const tensorflow::NodeDef& node, const char* name) {
  const auto it = node.attr().find(name);
  return it == node.attr().end() ? "" : it->second.s();
}

}  // namespace

void RewriteEngines(const EngineChoice& choice, tensorflow::GraphDef* graph) {
  ForEach(*graph, [&choice](tensorflow::NodeDef& node) {
    auto& attr = *node.mutable_attr();
    const bool other = !choice.provider.empty() && choice.provider != attr["provider"].s();
    if (other) attr["provider"].set_s(choice.provider);
    if (!choice.precision.empty()) attr["precision"].set_s(choice.precision);
    if (!choice.options.empty()) {
      attr["options"].set_s(choice.options);
    } else if (other) {
      attr["options"].set_s("{}");
    }
    if (choice.threads > 0) attr["threads"].set_i(choice.threads);
  });
}

std::vector<EngineUse> EnginesOf(const tensorflow::GraphDef& graph) {
  std::vector<EngineUse> uses;
  ForEach(graph, [&uses](const tensorflow::NodeDef& node) {
    const auto threads = node.attr().find("threads");
    uses.push_back({node.name(), Text(node, "label"), Text(node, "provider"), Text(node, "precision"),
                    threads == node.attr().end() ? 1 : threads->second.i(), node.SerializeAsString()});
  });
  return uses;
}

}  // namespace tfctr
