#include "tfctr/core/runtime/request_checks.h"

#include <algorithm>

#include "tfctr/core/runtime/packer.h"
#include "tfctr/core/wire/text.h"

namespace tfctr {

namespace {

// "; did you mean 'age'?", or a list of what there is.
std::string Suggestion(const SignaturePlan& plan, std::string_view name) {
  constexpr double kAlike = 0.6;
  const Entry* closest = nullptr;
  double best = kAlike;
  for (const Entry& entry : plan.entries) {
    const size_t shorter = std::min(name.size(), entry.name.size()), both = name.size() + entry.name.size();
    if (2.0 * static_cast<double>(shorter) < kAlike * static_cast<double>(both)) continue;
    const double likeness = Likeness(name, entry.name);
    if (likeness < best || (closest != nullptr && likeness == best)) continue;
    closest = &entry;
    best = likeness;
  }
  if (closest != nullptr) return "; did you mean " + Quoted(closest->name) + "?";
  std::string text = "; the signature takes ";
  constexpr size_t kShown = 12;
  for (size_t i = 0; i < plan.entries.size() && i < kShown; ++i)
    text += (i > 0 ? ", " : "") + Quoted(plan.entries[i].name);
  if (plan.entries.size() > kShown) text += " and " + std::to_string(plan.entries.size() - kShown) + " more";
  return text;
}

// "'tags' and 'tags_1'": what a protocol without whole features sends.
std::string PartNames(const SignaturePlan& plan, const Feature& feature) {
  std::string text;
  for (size_t i = 0; i < feature.parts.size(); ++i) {
    const bool last = i + 1 == feature.parts.size();
    text += (i == 0 ? "" : last ? " and " : ", ") + Quoted(plan.parts[static_cast<size_t>(feature.parts[i])].name);
  }
  return text;
}

[[noreturn]] void FailMissing(const SignaturePlan& plan, const std::vector<PartValue>& values) {
  std::vector<std::string> missing;
  std::vector<bool> told(plan.features.size(), false);
  for (size_t i = 0; i < values.size(); ++i) {
    const Part& part = plan.parts[i];
    if (values[i].present() || part.optional) continue;
    if (part.feature < 0) {
      missing.push_back("input " + Quoted(part.name) + " (" + part.Describe() + ")");
      continue;
    }
    const Feature& feature = plan.features[static_cast<size_t>(part.feature)];
    bool some = false;
    for (const int other : feature.parts) some = some || values[static_cast<size_t>(other)].present();
    if (some) {
      missing.push_back("input " + Quoted(part.name) + " (" + part.Describe() + ", a part of feature " +
                        Quoted(feature.name) + ")");
    } else if (!told[static_cast<size_t>(part.feature)]) {
      told[static_cast<size_t>(part.feature)] = true;
      missing.push_back("feature " + Quoted(feature.name) + " (" + feature.Describe(plan.parts) +
                        "; as parts: " + PartNames(plan, feature) + ")");
    }
  }
  std::string text = missing.size() == 1 ? "missing " : std::to_string(missing.size()) + " inputs are missing: ";
  constexpr size_t kShown = 5;
  for (size_t i = 0; i < missing.size() && i < kShown; ++i) text += (i > 0 ? ", " : "") + missing[i];
  if (missing.size() > kShown) text += " and " + std::to_string(missing.size() - kShown) + " more";
  Fail(plan, text);
}

}  // namespace

std::string Quoted(const std::string& name) { return "'" + name + "'"; }

void Fail(const SignaturePlan& plan, const std::string& what) { throw BadRequest(plan.context + ": " + what); }

void FailPart(const SignaturePlan& plan, const Part& part, const Mismatch& mismatch) {
  std::string of;
  if (part.feature >= 0) {
    const Feature& feature = plan.features[static_cast<size_t>(part.feature)];
    if (feature.name != part.name) of = " of feature " + Quoted(feature.name);
  }
  Fail(plan, "input " + Quoted(part.name) + of + ": got " + mismatch.got() + ", expected " + part.Describe());
}

void FailFeature(const SignaturePlan& plan, const Feature& feature, const Mismatch& mismatch) {
  Fail(plan,
       "feature " + Quoted(feature.name) + ": got " + mismatch.got() + ", expected " + feature.Describe(plan.parts));
}

void FailUnknown(const SignaturePlan& plan, std::string_view name) {
  if (name == "row_to_user" && plan.row_to_user < 0) {
    Fail(plan, "got 'row_to_user', but no user features are declared for this model, so no rows belong to users");
  }
  Fail(plan, "there is no input " + ShownText(name) + Suggestion(plan, name));
}

void FailIfTwice(const SignaturePlan& plan, const std::vector<PartValue>& values, int part) {
  if (!values[static_cast<size_t>(part)].present()) return;
  const Part& known = plan.parts[static_cast<size_t>(part)];
  Fail(plan, "input " + Quoted(known.name) + " is given twice: by itself and as a part of feature " +
                 Quoted(plan.features[static_cast<size_t>(known.feature)].name));
}

void FinishValues(const SignaturePlan& plan, std::vector<PartValue>* values, std::vector<int>* absent) {
  for (size_t i = 0; i < values->size(); ++i) {
    PartValue& value = (*values)[i];
    if (value.present()) continue;
    if (!plan.parts[i].optional) FailMissing(plan, *values);
    if (static_cast<int>(i) != plan.row_to_user) absent->push_back(static_cast<int>(i));
    value.dims.push_back(0);
  }
  for (const Feature& feature : plan.features) {
    try {
      CheckFeature(plan, feature, *values);
    } catch (const Mismatch& mismatch) {
      FailFeature(plan, feature, mismatch);
    }
  }
}

}  // namespace tfctr
