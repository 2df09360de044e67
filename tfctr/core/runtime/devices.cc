#include "tfctr/core/runtime/devices.h"

#include <utility>

#include "tensorflow/core/util/device_name_utils.h"

namespace tfctr {

namespace {

using tensorflow::DeviceNameUtils;
using Name = DeviceNameUtils::ParsedName;

struct Move {
  Name from;
  Name to;
};

// Calls `f` with every node of the graph and of its functions.
template <typename Graph, typename F>
void ForEachNode(Graph& graph, F&& f) {
  if constexpr (std::is_const_v<Graph>) {
    for (const tensorflow::NodeDef& node : graph.node()) f(node);
    for (const tensorflow::FunctionDef& function : graph.library().function()) {
      for (const tensorflow::NodeDef& node : function.node_def()) f(node);
    }
  } else {
    for (tensorflow::NodeDef& node : *graph.mutable_node()) f(node);
    for (tensorflow::FunctionDef& function : *graph.mutable_library()->mutable_function()) {
      for (tensorflow::NodeDef& node : *function.mutable_node_def()) f(node);
    }
  }
}

// Whether nodes on `name` are meant by a map's `from`: the same type and number; job, replica and task only where
// `from` names them.
bool Matches(const Name& from, const Name& name) {
  if (!name.has_type || name.type != from.type) return false;
  if (from.has_id && (name.has_id ? name.id : 0) != from.id) return false;
  return (!from.has_job || !name.has_job || from.job == name.job) &&
         (!from.has_replica || !name.has_replica || from.replica == name.replica) &&
         (!from.has_task || !name.has_task || from.task == name.task);
}

absl::Status Parse(const std::string& text, Name* name) {
  if (DeviceNameUtils::ParseFullOrLocalName(text, name) && name->has_type) return absl::OkStatus();
  return absl::InvalidArgumentError("'" + text + "' is no device; expected one such as /CPU:0 or /GPU:1");
}

}  // namespace

absl::Status RewriteDevices(const DeviceMap& map, tensorflow::GraphDef* graph) {
  std::vector<Move> moves;
  std::string unplaced;
  for (const auto& [from, to] : map) {
    Move move;
    absl::Status status = Parse(to, &move.to);
    if (status.ok() && !from.empty()) status = Parse(from, &move.from);
    if (!status.ok()) return status;
    if (from.empty()) {
      unplaced = DeviceNameUtils::ParsedNameToString(move.to);
    } else {
      moves.push_back(std::move(move));
    }
  }
  ForEachNode(*graph, [&](tensorflow::NodeDef& node) {
    if (node.device().empty()) {
      if (!unplaced.empty()) node.set_device(unplaced);
      return;
    }
    Name name;
    if (!DeviceNameUtils::ParseFullOrLocalName(node.device(), &name)) return;  // the session refuses it by name
    for (const Move& move : moves) {
      if (!Matches(move.from, name)) continue;
      name.type = move.to.type;
      name.has_id = move.to.has_id;
      name.id = move.to.id;
      node.set_device(DeviceNameUtils::ParsedNameToString(name));
      return;
    }
  });
  return absl::OkStatus();
}

std::vector<DeviceUse> DevicesOf(const tensorflow::GraphDef& graph, const std::vector<std::string>& session) {
  std::map<std::string, DeviceUse> found;
  ForEachNode(graph, [&](const tensorflow::NodeDef& node) { ++found[node.device()].ops[node.op()]; });
  std::vector<Name> devices;
  for (const std::string& device : session) {
    Name name;
    if (DeviceNameUtils::ParseFullOrLocalName(device, &name)) devices.push_back(std::move(name));
  }
  std::vector<DeviceUse> uses;
  for (auto& [device, use] : found) {
    use.device = device;
    Name wanted;
    if (DeviceNameUtils::ParseFullOrLocalName(device, &wanted)) {
      use.present = false;
      for (const Name& has : devices) use.present = use.present || DeviceNameUtils::IsSpecification(wanted, has);
    }
    uses.push_back(std::move(use));
  }
  return uses;
}

}  // namespace tfctr
