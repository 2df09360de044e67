#include "tfctr/core/runtime/group_parts.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <exception>
#include <thread>

namespace tfctr {

namespace {

// As low as batch jobs of a machine: what such work may take is what serving leaves.
constexpr int kLowPriorityNice = 15;

}  // namespace

void AtLowPriority(const std::function<void()>& work) {
  std::exception_ptr thrown;
  std::thread thread([&] {
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kLowPriorityNice);
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
  });
  thread.join();
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

}  // namespace tfctr
