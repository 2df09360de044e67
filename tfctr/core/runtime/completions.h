// A thread that takes the GIL for others: answers of asynchronous requests wait here for Python, so that no executor
// ever does.
//
// Thread-safety: Push may be called from any thread, without the GIL.
#ifndef TFCTR_CORE_RUNTIME_COMPLETIONS_H_
#define TFCTR_CORE_RUNTIME_COMPLETIONS_H_

#include <functional>
#include <memory>

namespace tfctr {

class Completions {
 public:
  Completions();
  // Ends the thread when what was pushed is done; the thread itself may be the one that gets here. Needs no GIL, and
  // must not hold it.
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // What the destructor does. What is pushed afterwards is dropped.
  void Stop();

  // `work` is called with the GIL held, and destroyed there; it must not throw.
  void Push(std::function<void()> work);

 private:
  struct State;
  static void Work(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_COMPLETIONS_H_
