// Providers by name, and the engines that are open.
#include <condition_variable>
#include <mutex>
#include <utility>

#include "tfctr/core/engines/engine.h"

namespace tfctr {
namespace {

struct Slot {
  std::weak_ptr<Engine> engine;
  bool opening = false;
};

struct Registry {
  std::mutex mutex;
  std::condition_variable opened;
  std::map<std::string, EngineOpener> providers;
  ProviderLoader loader;
  std::map<std::string, Slot> engines;  // by EngineSpec::Key

  static Registry& Global() {
    static Registry* const registry = new Registry();  // never destroyed: threads may outlive static destruction
    return *registry;
  }
};

std::string List(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

Result<EngineOpener> FindOpener(const std::string& provider) {
  Registry& registry = Registry::Global();
  ProviderLoader loader;
  {
    std::lock_guard<std::mutex> lock(registry.mutex);
    const auto it = registry.providers.find(provider);
    if (it != registry.providers.end()) return it->second;
    loader = registry.loader;
  }
  const Status loaded = loader ? loader(provider) : Status::Ok();
  {
    std::lock_guard<std::mutex> lock(registry.mutex);
    const auto it = registry.providers.find(provider);
    if (it != registry.providers.end()) return it->second;
  }
  return Status::Invalid("the provider '" + provider + "' is not loaded in this process (loaded: " +
                         List(EngineProviders()) + ")" + (loaded.ok() ? "" : ": " + loaded.message));
}

Result<std::shared_ptr<Engine>> OpenNew(const EngineSpec& spec) {
  const Result<EngineOpener> opener = FindOpener(spec.provider);
  if (!opener.ok()) return opener.status();
  return opener.value()(spec);
}

// Ends a key's "opening" whatever happens, so that no thread waits for ever.
class Opening {
 public:
  explicit Opening(const std::string& key) : key_(key) {}
  ~Opening() {
    Registry& registry = Registry::Global();
    {
      std::lock_guard<std::mutex> lock(registry.mutex);
      Slot& slot = registry.engines[key_];
      slot.opening = false;
      slot.engine = engine;
      for (auto it = registry.engines.begin(); it != registry.engines.end();) {  // forget what nobody uses any more
        it = !it->second.opening && it->second.engine.expired() ? registry.engines.erase(it) : std::next(it);
      }
    }
    registry.opened.notify_all();
  }
  std::shared_ptr<Engine> engine;

 private:
  const std::string& key_;
};

}  // namespace

void RegisterEngineProvider(const std::string& name, EngineOpener opener) {
  Registry& registry = Registry::Global();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.providers[name].swap(opener);
}

std::vector<std::string> EngineProviders() {
  Registry& registry = Registry::Global();
  std::lock_guard<std::mutex> lock(registry.mutex);
  std::vector<std::string> names;
  for (const auto& [name, opener] : registry.providers) names.push_back(name);
  return names;
}

void SetProviderLoader(ProviderLoader loader) {
  Registry& registry = Registry::Global();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.loader.swap(loader);
}

Result<std::shared_ptr<Engine>> OpenEngine(const EngineSpec& spec) {
  Registry& registry = Registry::Global();
  const std::string key = spec.Key();
  {
    std::unique_lock<std::mutex> lock(registry.mutex);
    for (;;) {
      Slot& slot = registry.engines[key];
      if (std::shared_ptr<Engine> engine = slot.engine.lock()) return engine;
      if (!slot.opening) {
        slot.opening = true;
        break;
      }
      registry.opened.wait(lock);  // a failed opening wakes us too: then this thread tries
    }
  }
  Opening opening(key);
  Result<std::shared_ptr<Engine>> opened = OpenNew(spec);
  if (!opened.ok()) {
    Status status = opened.status();
    status.message = spec.Named() + ": " + status.message;
    return status;
  }
  opening.engine = opened.value();
  return opened;
}

}  // namespace tfctr
