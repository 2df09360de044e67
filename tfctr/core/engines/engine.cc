#include "tfctr/core/engines/engine.h"

#include <charconv>
#include <cstring>
#include <utility>

namespace tfctr {
namespace {

Status ParseDims(const std::string& name, std::string_view text, bool may_add, EngineSpec* spec,
                 std::vector<EngineDim>* dims) {
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view word = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    EngineDim dim;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), dim.size);
    if (error != std::errc() || end != word.data() + word.size() || dim.size < 0) {
      const bool named = !word.empty() && (word[0] < '0' || word[0] > '9') && word[0] != '-' && word[0] != ' ';
      if (!named) {
        return Status::Invalid("tensor '" + name + "': size '" + std::string(word) +
                               "' is neither a number nor a name");
      }
      dim.size = 0;
      dim.open = spec->OpenIndex(word);
      if (dim.open < 0) {
        if (!may_add) {
          return Status::Invalid("output '" + name + "': no input has its open size '" + std::string(word) + "'");
        }
        dim.open = static_cast<int>(spec->open_names.size());
        spec->open_names.emplace_back(word);
      }
    }
    dims->push_back(dim);
  }
  return Status::Ok();
}

std::string ShapeText(const int64_t* dims, int rank) {
  std::string text = "[";
  for (int d = 0; d < rank; ++d) text += (d == 0 ? "" : ", ") + std::to_string(dims[d]);
  return text + "]";
}

// What a call needs beside its arguments. Its memory is that of the thread's last call; a call within a call (of an
// engine by another's provider) finds none and makes its own.
struct Scratch {
  std::vector<int64_t> sizes;
  std::vector<void*> outputs;
  std::vector<std::vector<int64_t>> dims;

  Scratch() = default;
  Scratch(Scratch&&) = default;
  Scratch& operator=(Scratch&&) = default;

  static Scratch& OfThread() {
    static thread_local Scratch scratch;
    return scratch;
  }
};

class Borrowed {
 public:
  Borrowed() : scratch_(std::move(Scratch::OfThread())) {}
  ~Borrowed() { Scratch::OfThread() = std::move(scratch_); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Scratch& get() { return scratch_; }

 private:
  Scratch scratch_;
};

// The input whose values are numbers of user rows.
int RowToUser(const EngineSpec& spec) {
  const int rows = spec.OpenIndex(kRowsName);
  if (rows < 0 || spec.OpenIndex(kUsersName) < 0) return -1;
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    const EngineTensor& one = spec.inputs[i];
    const bool is_rows = one.dims.size() == 1 && one.dims[0].open == rows;
    if (one.name == kRowToUserName && one.dtype == DType::kInt64 && is_rows) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

Status EngineSpec::AddInput(const std::string& name, DType dtype, std::string_view dims) {
  EngineTensor tensor{name, dtype, {}};
  if (dtype == DType::kInvalid) return Status::Invalid("input '" + name + "': engines do not take its dtype");
  TFCTR_RETURN_IF_ERROR(ParseDims(name, dims, /*may_add=*/true, this, &tensor.dims));
  inputs.push_back(std::move(tensor));
  return Status::Ok();
}

Status EngineSpec::AddOutput(const std::string& name, DType dtype, std::string_view dims) {
  EngineTensor tensor{name, dtype, {}};
  if (dtype == DType::kInvalid) return Status::Invalid("output '" + name + "': engines do not give its dtype");
  TFCTR_RETURN_IF_ERROR(ParseDims(name, dims, /*may_add=*/false, this, &tensor.dims));
  outputs.push_back(std::move(tensor));
  return Status::Ok();
}

int EngineSpec::OpenIndex(std::string_view name) const {
  for (size_t i = 0; i < open_names.size(); ++i) {
    if (open_names[i] == name) return static_cast<int>(i);
  }
  return -1;
}

const EngineFile* EngineSpec::File(std::string_view role) const {
  for (const EngineFile& file : files) {
    if (file.role == role) return &file;
  }
  return nullptr;
}

std::string EngineSpec::Named() const { return "engine '" + label + "' (" + provider + ")"; }

std::string EngineSpec::DimsText(const EngineTensor& tensor) const {
  std::string text = "[";
  for (size_t d = 0; d < tensor.dims.size(); ++d) {
    const EngineDim& dim = tensor.dims[d];
    text +=
        (d == 0 ? "" : ", ") + (dim.open < 0 ? std::to_string(dim.size) : open_names[static_cast<size_t>(dim.open)]);
  }
  return text + "]";
}

std::string EngineSpec::Key() const {
  std::string key = provider + '\n' + precision + '\n' + std::to_string(threads) + '\n' + options;
  for (const auto* tensors : {&inputs, &outputs}) {
    key += '\n';
    for (const EngineTensor& one : *tensors) key += one.name + ' ' + DTypeName(one.dtype) + DimsText(one) + ';';
  }
  for (const EngineFile& file : files) key += '\n' + file.role + ' ' + file.blob->fingerprint();
  return key;
}

Engine::Engine(EngineSpec spec)
    : spec_(std::move(spec)),
      rows_(spec_.OpenIndex(kRowsName)),
      users_(spec_.OpenIndex(kUsersName)),
      row_to_user_(RowToUser(spec_)) {}

// Checks every input and fills the open sizes.
Status Engine::Bind(const std::vector<InputView>& inputs, std::vector<int64_t>* sizes) const {
  sizes->assign(spec_.open_names.size(), -1);
  if (inputs.size() != spec_.inputs.size()) {
    return Status::Invalid("got " + std::to_string(inputs.size()) + " inputs, expected " +
                           std::to_string(spec_.inputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const EngineTensor& expected = spec_.inputs[i];
    const InputView& view = inputs[i];
    bool fits = view.dtype == expected.dtype && view.rank == static_cast<int>(expected.dims.size());
    for (int d = 0; fits && d < view.rank; ++d) {
      const EngineDim& dim = expected.dims[static_cast<size_t>(d)];
      int64_t want = dim.size;
      if (dim.open >= 0) {
        int64_t& open = (*sizes)[static_cast<size_t>(dim.open)];
        if (open < 0) open = view.dims[d];
        want = open;
      }
      fits = view.dims[d] == want;
    }
    if (fits) continue;
    std::string text = "input '" + expected.name + "' is " + DTypeName(view.dtype) + ' ' +
                       ShapeText(view.dims, view.rank) + ", expected " + DTypeName(expected.dtype) + ' ' +
                       spec_.DimsText(expected);
    for (size_t k = 0; k < sizes->size(); ++k) {
      if ((*sizes)[k] >= 0) text += ", " + spec_.open_names[k] + " = " + std::to_string((*sizes)[k]);
    }
    return Status::Invalid(text);
  }
  return Status::Ok();
}

Status Engine::CheckUsers(const std::vector<InputView>& inputs, const std::vector<int64_t>& sizes) const {
  if (row_to_user_ < 0) return Status::Ok();
  const InputView& view = inputs[static_cast<size_t>(row_to_user_)];
  const int64_t users = sizes[static_cast<size_t>(users_)];
  for (int64_t row = 0; row < view.dims[0]; ++row) {
    int64_t user = 0;
    std::memcpy(&user, static_cast<const char*>(view.data) + row * static_cast<int64_t>(sizeof(user)), sizeof(user));
    if (user >= 0 && user < users) continue;
    return Status::Invalid("input 'row_to_user' holds " + std::to_string(user) + " for row " + std::to_string(row) +
                           ", expected a user row in [0, " + std::to_string(users) + ")");
  }
  return Status::Ok();
}

Status Engine::Run(const std::vector<InputView>& inputs, OutputSink* outputs, const std::string* label) {
  Borrowed borrowed;
  Scratch& scratch = borrowed.get();
  const auto named = [this, label](Status status) {
    const std::string& name = label == nullptr ? spec_.label : *label;
    status.message = "engine '" + name + "' (" + spec_.provider + "): " + status.message;
    return status;
  };
  Status status = Bind(inputs, &scratch.sizes);
  if (status.ok()) status = CheckUsers(inputs, scratch.sizes);
  if (!status.ok()) return named(std::move(status));
  const bool empty = rows_ >= 0 && scratch.sizes[static_cast<size_t>(rows_)] == 0;
  scratch.outputs.resize(spec_.outputs.size());
  scratch.dims.resize(spec_.outputs.size());
  for (size_t k = 0; k < spec_.outputs.size(); ++k) {
    std::vector<int64_t>& dims = scratch.dims[k];
    dims.clear();
    bool has_rows = false;
    for (const EngineDim& dim : spec_.outputs[k].dims) {
      dims.push_back(dim.open < 0 ? dim.size : scratch.sizes[static_cast<size_t>(dim.open)]);
      has_rows = has_rows || dim.open == rows_;
    }
    if (empty && !has_rows) {
      return named(Status::Invalid("output '" + spec_.outputs[k].name + "' " + spec_.DimsText(spec_.outputs[k]) +
                                   " does not depend on the rows and has no value for an empty batch"));
    }
    Result<void*> memory = outputs->Allocate(k, dims);
    if (!memory.ok()) return named(memory.status());
    scratch.outputs[k] = memory.value();
  }
  if (empty) return Status::Ok();
  status = RunChecked({inputs.data(), scratch.outputs, scratch.dims, scratch.sizes});
  return status.ok() ? status : named(std::move(status));
}

}  // namespace tfctr
