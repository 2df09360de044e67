// What every reader of requests checks and says, wherever a request came from: names that the signature has not, parts
// that are missing or given twice, features whose parts disagree. No Python, no GIL.
#ifndef TFCTR_CORE_RUNTIME_REQUEST_CHECKS_H_
#define TFCTR_CORE_RUNTIME_REQUEST_CHECKS_H_

#include <string>
#include <string_view>
#include <vector>

#include "tfctr/core/runtime/part_value.h"
#include "tfctr/core/runtime/signature_plan.h"

namespace tfctr {

// Name in quotes, for messages.
std::string Quoted(const std::string& name);

// Throw BadRequest with the plan's context, what is wrong, and what was expected.
[[noreturn]] void Fail(const SignaturePlan& plan, const std::string& what);
[[noreturn]] void FailPart(const SignaturePlan& plan, const Part& part, const Mismatch& mismatch);
[[noreturn]] void FailFeature(const SignaturePlan& plan, const Feature& feature, const Mismatch& mismatch);
// There is no input of this name: which one may be meant.
[[noreturn]] void FailUnknown(const SignaturePlan& plan, std::string_view name);

// Throws BadRequest when a part of a feature has its value already.
void FailIfTwice(const SignaturePlan& plan, const std::vector<PartValue>& values, int part);

// When all that came is in `values`: throws BadRequest for what is missing and for features whose parts disagree; lists
// the optional parts that were left out (row_to_user is not among them).
void FinishValues(const SignaturePlan& plan, std::vector<PartValue>* values, std::vector<int>* absent);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_REQUEST_CHECKS_H_
