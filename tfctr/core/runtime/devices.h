// Devices that a graph asks for: rewriting them when a model is loaded (one executor per virtual device), and comparing
// them with the devices that a session has.
//
// Thread-safety: plain functions and values.
#ifndef TFCTR_CORE_RUNTIME_DEVICES_H_
#define TFCTR_CORE_RUNTIME_DEVICES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tfctr {

// Device as written in a node or a map ("/GPU:0", "/device:GPU:0", "/job:localhost/replica:0/task:0/device:GPU:0") ->
// where its nodes go. "" stands for nodes that ask for no device.
using DeviceMap = std::map<std::string, std::string>;

// Sets the device of every node of `graph` and of its functions as `map` says; a device without a number means any of
// its type, so it matches number 0. InvalidArgument for a device of `map` that does not parse.
absl::Status RewriteDevices(const DeviceMap& map, tensorflow::GraphDef* graph);

// What nodes ask for, and which of it a session lacks.
struct DeviceUse {
  std::string device;                  // as the nodes write it; "" for those that ask for none
  std::map<std::string, int64_t> ops;  // op type -> nodes
  bool present = true;                 // whether the session has such a device
};

// One entry per device that nodes of `graph` (and of its functions) ask for, in order of their names. `session`: full
// names of the session's devices.
std::vector<DeviceUse> DevicesOf(const tensorflow::GraphDef& graph, const std::vector<std::string>& session);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_DEVICES_H_
