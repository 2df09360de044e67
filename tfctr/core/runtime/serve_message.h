// From the bytes of a request message to the bytes of its reply, in one go: parse, pack, queue, run, write. No Python,
// no GIL. Given up between any two of them once it is too late or cancelled.
//
// Thread-safety: a plain function. The calling thread parses, packs and writes; executors only run.
#ifndef TFCTR_CORE_RUNTIME_SERVE_MESSAGE_H_
#define TFCTR_CORE_RUNTIME_SERVE_MESSAGE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tfctr/core/runtime/serving_group.h"
#include "tfctr/core/runtime/wire_input.h"
#include "tfctr/core/runtime/wire_reply.h"

namespace tfctr {

struct MessageReply {
  Failure failure;
  std::string body;
  Timing timing;
};

// spec: `outputs` empty: those that the request asks for; `id` is the request's. users: inputs that the request names
// as the user's (user_rows.h).
MessageReply ServeMessage(ServingGroup* group, const GroupSignature& signature, Protocol protocol,
                          std::string_view body, const std::shared_ptr<Call>& call, ReplySpec spec,
                          const std::vector<std::string>& users = {});

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_SERVE_MESSAGE_H_
