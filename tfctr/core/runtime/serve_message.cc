#include "tfctr/core/runtime/serve_message.h"

#include <utility>
#include <vector>

namespace tfctr {

namespace {

Failure FailureOf(const absl::Status& status, Stage stage) {
  FailCode code = FailCode::kInternal;
  if (absl::IsInvalidArgument(status)) code = FailCode::kInvalidArgument;
  if (absl::IsResourceExhausted(status)) code = FailCode::kResourceExhausted;
  if (absl::IsNotFound(status)) code = FailCode::kNotFound;
  if (absl::IsUnimplemented(status)) code = FailCode::kUnimplemented;
  return {code, stage, std::string(status.message())};
}

MessageReply Failed(Failure failure) {
  MessageReply reply;
  reply.failure = std::move(failure);
  return reply;
}

}  // namespace

MessageReply ServeMessage(ServingGroup* group, const GroupSignature& signature, Protocol protocol,
                          std::string_view body, const std::shared_ptr<Call>& call, ReplySpec spec,
                          const std::vector<std::string>& users) {
  const SignaturePlan& plan = signature.plan();
  const int64_t start = group->Now();
  if (Failure late = call->Check(start, Stage::kParse); !late.ok()) return Failed(std::move(late));
  WireRequest wire;
  absl::Status status = ReadWire(protocol, body, plan, &wire);
  if (!status.ok()) return Failed(FailureOf(status, Stage::kParse));
  const int64_t parsed = group->Now();
  if (Failure late = call->Check(parsed, Stage::kPack); !late.ok()) return Failed(std::move(late));
  absl::StatusOr<PackedRequest> packed = PackWire(plan, &wire, users);
  if (!packed.ok()) return Failed(FailureOf(packed.status(), Stage::kPack));
  const int64_t submitted = group->Now();
  call->origin.parse_ns = parsed - start;
  call->origin.pack_ns = submitted - parsed;
  Answer answer = group->Run(signature, *std::move(packed), call);
  if (!answer.failure.ok()) return Failed(std::move(answer.failure));
  if (Failure late = call->Check(group->Now(), Stage::kReply); !late.ok()) return Failed(std::move(late));
  if (spec.outputs.empty()) spec.outputs = std::move(wire.outputs);
  spec.id = std::move(wire.id);
  std::vector<ReplyOutput> outputs;
  for (size_t i = 0; i < answer.outputs.size(); ++i) {
    outputs.push_back({plan.plain.outputs[i].name, &answer.outputs[i]});
  }
  absl::StatusOr<std::string> written = WriteReply(protocol, spec, outputs);
  if (!written.ok()) return Failed(FailureOf(written.status(), Stage::kReply));
  MessageReply reply;
  reply.body = *std::move(written);
  reply.timing = answer.timing;
  reply.timing.parse = parsed - start;
  reply.timing.pack = submitted - parsed;
  reply.timing.Close(group->Now() - start);
  return reply;
}

}  // namespace tfctr
