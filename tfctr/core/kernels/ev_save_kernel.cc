// TfctrEvSave and TfctrEvSaveDelta: tables, or what changed in them, into one bundle.
//
// BundleWriter writes the data file under a temporary name, so what a killed process leaves is never taken for a
// bundle; the next save of the same prefix removes it. Files are synced here, since stock TensorFlow doesn't: the
// checkpoint that names them must not be on disk before them.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tfctr/core/kernels/ev_bundle.h"
#include "tfctr/core/kernels/ev_resource.h"
#include "tfctr/core/kernels/store_resource.h"
#include "tfctr/core/storage/file_io.h"

namespace tfctr {
namespace {

using tensorflow::BundleWriter;
using tensorflow::Env;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

bool IsLocal(const std::string& path) { return !absl::StrContains(path, "://"); }

std::vector<std::string> FilesOf(const std::string& prefix) {
  return {tensorflow::DataFilename(prefix, 0, 1), tensorflow::MetaFilename(prefix)};
}

// Removes what a save of this prefix that was killed left under temporary names.
void RemoveLeftovers(const std::string& prefix) {
  for (const std::string& file : FilesOf(prefix)) {
    std::vector<std::string> found;
    if (!Env::Default()->GetMatchingPaths(absl::StrCat(file, ".tempstate*"), &found).ok()) continue;
    for (const std::string& path : found) Env::Default()->DeleteFile(path).IgnoreError();
  }
}

void RemoveFiles(const std::string& prefix) {
  RemoveLeftovers(prefix);
  for (const std::string& file : FilesOf(prefix)) Env::Default()->DeleteFile(file).IgnoreError();
}

Status Sync(const std::string& path) {
  Result<UniqueFd> file = OpenForRead(path);
  if (!file.ok()) return file.status();
  if (::fsync(file.value().get()) != 0) return ErrnoStatus("syncing", path, errno);
  return Status::Ok();
}

// Elsewhere than on a local disk a closed file is as durable as it gets.
absl::Status SyncFiles(const std::string& prefix) {
  if (!IsLocal(prefix)) return absl::OkStatus();
  for (const std::string& file : FilesOf(prefix)) {
    const Status synced = Sync(file);
    if (!synced.ok()) return ToTensorFlow(synced);
  }
  return ToTensorFlow(SyncDirectoryOf(prefix));
}

// Lets the disk begin with what was written while the rest is copied. Left alone, the kernel keeps over a gigabyte in
// its cache before it writes any, and fsync then has it all to do.
class Writeback {
 public:
  // The data file of a BundleWriter that was just made.
  explicit Writeback(const std::string& prefix) {
    std::vector<std::string> found;
    if (!IsLocal(prefix)) return;
    const std::string data = FilesOf(prefix).front();
    if (!Env::Default()->GetMatchingPaths(absl::StrCat(data, ".tempstate*"), &found).ok() || found.size() != 1) return;
    Result<UniqueFd> file = OpenForRead(found.front());
    if (file.ok()) file_ = file.Take();
  }
  // A hint: what fails here fails again, and is reported, in fsync.
  void Begin() const {
    if (file_.valid()) (void)::sync_file_range(file_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  }

 private:
  UniqueFd file_;
};

// TfctrEvSaveDelta has the identity of the save, and of each table what its delta begins at, before the handles.
class EvSaveOp : public OpKernel {
 public:
  explicit EvSaveOp(OpKernelConstruction* context) : OpKernel(context), delta_(type_string() == "TfctrEvSaveDelta") {
    OP_REQUIRES_OK(context, context->GetAttr("N", &count_));
    OP_REQUIRES_OK(context, GetPlaces(context, count_, &places_));
    if (delta_) return;  // without some part it could not be continued
    OP_REQUIRES_OK(context, context->GetAttr("slots", &parts_.slots));
    OP_REQUIRES_OK(context, context->GetAttr("counters", &parts_.counters));
    OP_REQUIRES_OK(context, context->GetAttr("steps", &parts_.steps));
  }

  void Compute(OpKernelContext* context) override {
    tstring prefix;
    OP_REQUIRES_OK(context, GetScalar(context, 0, "prefix", &prefix));
    const int64_t* steps = nullptr;
    OP_REQUIRES_OK(context, PerTable(context, 1, "step", &steps));
    Chain chain;
    OP_REQUIRES_OK(context, ReadChain(context, &chain));
    const int handles = context->num_inputs() - count_;
    std::vector<tensorflow::core::RefCountPtr<EvResource>> variables(static_cast<size_t>(count_));
    for (int i = 0; i < count_; ++i) OP_REQUIRES_OK(context, GetEv(context, handles + i, &variables[i]));
    std::vector<Now> nows;
    for (int i = 0; i < count_; ++i) {
      nows.push_back(variables[i]->NowAt(steps[i]));
      if (!variables[i]->config().evict_on_save || nows.back().step < 0) continue;
      EvictionResult result;
      const Status evicted = variables[i]->Evict(nows.back(), /*dry_run=*/false, &result);
      OP_REQUIRES(context, evicted.ok(), ToTensorFlow(evicted));
    }
    const absl::Status saved = Save(prefix, nows, chain, variables);
    if (!saved.ok()) RemoveFiles(prefix);
    OP_REQUIRES_OK(context, saved);
    Tensor* written = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &written));
    written->scalar<tstring>()() = prefix;
  }

 private:
  struct Chain {
    SaveIdentity identity;
    const int64_t* since = nullptr;     // null: all tables are saved whole
    const int64_t* instance = nullptr;  // of the table that `since` is a mark of
  };

  absl::Status PerTable(OpKernelContext* context, int input, const char* what, const int64_t** values) const {
    const Tensor& tensor = context->input(input);
    if (tensor.dims() != 1 || tensor.NumElements() != count_) {
      return absl::InvalidArgumentError(absl::StrCat(type_string(), ": ", what, " has shape ",
                                                     tensor.shape().DebugString(), ", expected [", count_, "]"));
    }
    *values = tensor.vec<int64_t>().data();
    return absl::OkStatus();
  }

  absl::Status ReadChain(OpKernelContext* context, Chain* chain) const {
    if (!delta_) return absl::OkStatus();
    TF_RETURN_IF_ERROR(PerTable(context, 2, "since", &chain->since));
    TF_RETURN_IF_ERROR(PerTable(context, 3, "instance", &chain->instance));
    std::string* const to[] = {&chain->identity.save, &chain->identity.previous_name, &chain->identity.previous_save};
    const char* const what[] = {"save", "previous_name", "previous_save"};
    for (int i = 0; i < 3; ++i) {
      tstring value;
      TF_RETURN_IF_ERROR(GetScalar(context, 4 + i, what[i], &value));
      *to[i] = value;
    }
    return absl::OkStatus();
  }

  absl::Status Save(const std::string& prefix, const std::vector<Now>& nows, const Chain& chain,
                    const std::vector<tensorflow::core::RefCountPtr<EvResource>>& variables) const {
    RemoveLeftovers(prefix);
    absl::Status status;
    {
      BundleWriter writer(Env::Default(), prefix);
      status = writer.status();
      const Writeback writeback(prefix);
      const auto written = [&writeback] { writeback.Begin(); };
      for (size_t i = 0; i < variables.size() && status.ok(); ++i) {
        const EvResource& variable = *variables[i];
        const std::shared_ptr<EmbeddingTable> table = variable.table();
        // A table that took the place of the one that was marked is saved whole.
        const int64_t since = chain.since != nullptr && table->instance() == chain.instance[i] ? chain.since[i] : -1;
        status = SaveTable(table, variable.config_text(), places_[i], parts_, nows[i], chain.identity, since, written,
                           &writer);
      }
      status.Update(writer.Finish());
    }
    if (status.ok()) status = SyncFiles(prefix);
    if (status.ok()) return status;
    std::vector<std::string> names;
    for (const auto& variable : variables) names.push_back(absl::StrCat("'", variable->name(), "'"));
    return absl::Status(status.code(), absl::StrCat("saving embedding variable ", absl::StrJoin(names, ", "), " to '",
                                                    prefix, "': ", status.message(), "; what was written is removed"));
  }

  const bool delta_;
  int count_ = 0;
  std::vector<TablePlace> places_;
  CheckpointParts parts_;
};

REGISTER_KERNEL_BUILDER(Name("TfctrEvSave").Device(tensorflow::DEVICE_CPU), EvSaveOp);
REGISTER_KERNEL_BUILDER(Name("TfctrEvSaveDelta").Device(tensorflow::DEVICE_CPU), EvSaveOp);

}  // namespace
}  // namespace tfctr
