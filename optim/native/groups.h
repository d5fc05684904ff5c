// The variables of one device with their slots and averages, looked up once: a step on many small variables would
// otherwise spend its time on handles.

#ifndef DTOPT_GROUPS_H_
#define DTOPT_GROUPS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "pieces.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace dtopt {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

class Group : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return absl::StrCat("dtopt group of ", variables.size(), " variables"); }

  struct Lock {
    tensorflow::mutex* mutex;
    bool shared;
  };

  std::vector<Var*> variables, slots, averages;  // slots: all first ones, then all second ones
  std::vector<Box> boxes;                        // by variable; one without a run: the whole shard
  std::vector<std::vector<Var*>> replicas;       // by variable: those on other devices that are written, too
  std::vector<Lock> locks;                       // in the order of addresses, in which all take them
  std::vector<tensorflow::core::RefCountPtr<Var>> held;

  bool IsWhole(size_t i) const { return boxes[i].run == 0; }

  // Several devices write parts of a variable with boxes at a time, so that it is locked against assignment only.
  absl::Status OrderLocks() {
    locks.clear();
    for (size_t i = 0; i < variables.size(); ++i) {
      locks.push_back({variables[i]->mu(), !IsWhole(i)});
      for (Var* replica : replicas[i]) locks.push_back({replica->mu(), true});
    }
    for (const auto* list : {&slots, &averages}) {
      for (Var* variable : *list) locks.push_back({variable->mu(), false});
    }
    std::sort(locks.begin(), locks.end(), [](const Lock& a, const Lock& b) { return a.mutex < b.mutex; });
    const auto same = [](const Lock& a, const Lock& b) { return a.mutex == b.mutex; };
    if (std::adjacent_find(locks.begin(), locks.end(), same) == locks.end()) return absl::OkStatus();
    return InvalidArgument("the same variable or slot was given twice");
  }
};

class Locks {
 public:
  explicit Locks(const Group& group) : group_(group) {
    for (const auto& [mutex, shared] : group_.locks) shared ? mutex->lock_shared() : mutex->lock();
  }
  ~Locks() {
    for (const auto& [mutex, shared] : group_.locks) shared ? mutex->unlock_shared() : mutex->unlock();
  }

 private:
  const Group& group_;
};

// Groups by number. A handle serves one device only; by its number a group finds those of the other devices.
class Registry {
 public:
  static int64_t Add(Group* group) {
    std::lock_guard<std::mutex> lock(mutex());
    auto& all = groups();
    for (auto it = all.begin(); it != all.end();) it = it->second.GetNewRef() ? std::next(it) : all.erase(it);
    const int64_t number = next()++;
    all.emplace(number, tensorflow::core::WeakPtr<Group>(group));
    return number;
  }

  static tensorflow::core::RefCountPtr<Group> Find(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex());
    const auto found = groups().find(number);
    return found == groups().end() ? nullptr : found->second.GetNewRef();
  }

 private:
  using Groups = std::map<int64_t, tensorflow::core::WeakPtr<Group>>;
  // Never destroyed: TensorFlow may free groups after this library's statics are gone.
  static std::mutex& mutex() { static auto* it = new std::mutex; return *it; }
  static Groups& groups() { static auto* it = new Groups; return *it; }
  static int64_t& next() { static auto* it = new int64_t(0); return *it; }
};

// A buffer that only the variable holds: its own, or a copy if a reader holds that one.
inline absl::Status OwnBuffer(OpKernelContext* context, Var* variable) {
  Tensor* tensor = variable->tensor();
  if (!tensor->IsInitialized() || tensor->RefCountIsOne()) return absl::OkStatus();
  Tensor copy;
  TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
  std::memcpy(copy.data(), tensor->data(), tensor->TotalBytes());
  *tensor = copy;
  return absl::OkStatus();
}

}  // namespace dtopt

#endif  // DTOPT_GROUPS_H_
