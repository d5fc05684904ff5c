// Variables with their slots and averages, looked up once: a step on many small variables would otherwise spend its time
// on handles. A handle can be looked up on its own device only, so that a group is made for each device; groups of all
// devices are then joined, for one op to update.

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
#include "gpu_step.h"
#include "pieces.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "threads.h"

namespace dtopt {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Where in the whole table the part of a variable that is updated begins, and how many columns the table has.
struct Region {
  int64_t first_row = 0, first_column = 0, columns = 0;
};

class Stepper;  // step.h
class Meeting;  // step_op.h

class Group : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return absl::StrCat("dtopt group of ", variables.size(), " variables"); }

  std::vector<Var*> variables, slots, averages;  // slots: all first ones, then all second ones
  // By variable, where those are master copies: their roundings. The copy of a part is as large as its slots.
  std::vector<Var*> roundings;
  std::vector<int64_t> sources;                  // by variable: where its gradient is
  std::vector<Box> boxes;                        // by variable; one without a run: the whole shard
  std::vector<std::vector<Var*>> replicas;       // by variable: of the model, others of the group that are written, too
  std::vector<Region> regions;                   // by variable; empty: each is the whole table
  std::vector<Others> others;                    // by variable; empty: kMove
  std::vector<tensorflow::mutex*> locks;         // in the order of addresses, in which all take them
  std::vector<tensorflow::core::RefCountPtr<Var>> held;
  const Workers* workers = nullptr;
  std::vector<std::shared_ptr<const Gpu>> gpus;  // by variable: what it is on; null: a CPU
  // Of a group that is joined, and updated without an op, or where the ops of all devices meet.
  std::shared_ptr<const Stepper> stepper;
  std::shared_ptr<Meeting> meeting;
  bool is_identity_at_zero = false;

  bool IsWhole(size_t i) const { return boxes[i].run == 0; }
  // The variable of the model: what is updated, or its rounding.
  Var* Model(size_t i) const { return roundings.empty() ? variables[i] : roundings[i]; }

  absl::Status OrderLocks() {
    locks.clear();
    for (const auto* list : {&variables, &slots, &averages, &roundings}) {
      for (Var* variable : *list) locks.push_back(variable->mu());
    }
    std::sort(locks.begin(), locks.end());
    if (std::adjacent_find(locks.begin(), locks.end()) == locks.end()) return absl::OkStatus();
    return InvalidArgument("the same variable or slot was given twice");
  }

  // Takes over all that another group has, which has the same number of slots for each variable.
  absl::Status Append(const Group& other) {
    const size_t had = variables.size(), more = other.variables.size();
    const size_t of_each = more == 0 ? 0 : other.slots.size() / more;
    if (had != 0 && (slots.size() != had * of_each || averages.empty() != other.averages.empty() ||
                     roundings.empty() != other.roundings.empty() || others.empty() != other.others.empty() ||
                     regions.empty() != other.regions.empty())) {
      return InvalidArgument("groups with different slots cannot be joined");
    }
    std::vector<Var*> all;
    for (size_t k = 0; k < of_each; ++k) {
      all.insert(all.end(), slots.begin() + k * had, slots.begin() + (k + 1) * had);
      all.insert(all.end(), other.slots.begin() + k * more, other.slots.begin() + (k + 1) * more);
    }
    slots = std::move(all);
    variables.insert(variables.end(), other.variables.begin(), other.variables.end());
    averages.insert(averages.end(), other.averages.begin(), other.averages.end());
    roundings.insert(roundings.end(), other.roundings.begin(), other.roundings.end());
    sources.insert(sources.end(), other.sources.begin(), other.sources.end());
    boxes.insert(boxes.end(), other.boxes.begin(), other.boxes.end());
    regions.insert(regions.end(), other.regions.begin(), other.regions.end());
    others.insert(others.end(), other.others.begin(), other.others.end());
    gpus.insert(gpus.end(), other.gpus.begin(), other.gpus.end());
    replicas.resize(variables.size());
    for (const auto& variable : other.held) {
      variable->Ref();
      held.emplace_back(variable.get());
    }
    return absl::OkStatus();
  }
};

// The variables whose handles are the inputs called `list`.
inline absl::Status FindAll(OpKernelContext* context, const char* list, std::vector<Var*>* found, Group* group) {
  int begin, end;
  TF_RETURN_IF_ERROR(context->op_kernel().InputRange(list, &begin, &end));
  for (int i = begin; i < end; ++i) {
    tensorflow::core::RefCountPtr<Var> variable;
    TF_RETURN_IF_ERROR(LookupResource(context, tensorflow::HandleFromInput(context, i), &variable));
    found->push_back(variable.get());
    group->held.push_back(std::move(variable));
  }
  return absl::OkStatus();
}

inline absl::Status FindAll(OpKernelContext* context, Group* group) {
  TF_RETURN_IF_ERROR(FindAll(context, "variables", &group->variables, group));
  TF_RETURN_IF_ERROR(FindAll(context, "slots", &group->slots, group));
  TF_RETURN_IF_ERROR(FindAll(context, "averages", &group->averages, group));
  TF_RETURN_IF_ERROR(FindAll(context, "roundings", &group->roundings, group));
  group->boxes.resize(group->variables.size());
  group->replicas.resize(group->variables.size());
  group->gpus.assign(group->variables.size(), Gpus::Get().Of(context));
  return absl::OkStatus();
}

class Locks {
 public:
  explicit Locks(const Group& group) : group_(group) {
    for (tensorflow::mutex* mutex : group_.locks) mutex->lock();
  }
  ~Locks() {
    for (tensorflow::mutex* mutex : group_.locks) mutex->unlock();
  }

 private:
  const Group& group_;
};

// Groups by number, by which they are found on any device.
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
inline absl::Status OwnBuffer(Var* variable) {
  Tensor* tensor = variable->tensor();
  if (!tensor->IsInitialized() || tensor->RefCountIsOne()) return absl::OkStatus();
  Tensor copy(tensor->dtype(), tensor->shape());
  if (!copy.IsInitialized()) return absl::ResourceExhaustedError(absl::StrCat("no ", tensor->TotalBytes(), " bytes"));
  std::memcpy(copy.data(), tensor->data(), tensor->TotalBytes());
  *tensor = copy;
  return absl::OkStatus();
}

}  // namespace dtopt

#endif  // DTOPT_GROUPS_H_
