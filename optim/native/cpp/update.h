// A step of a group, with gradients that are held, without an op: after a kernel has moved megabytes through the caches,
// to find and call an op takes as long as to update a million elements.

#ifndef DTOPT_UPDATE_H_
#define DTOPT_UPDATE_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gradients.h"
#include "groups.h"
#include "step.h"
#include "tensorflow/core/platform/denormal.h"

namespace dtopt {

constexpr int64_t kDense = -1;  // no rows

// The tensors at `sources` of what is held under a number, which keeps them alive.
class Sources {
 public:
  absl::Status Open(int64_t number, const std::vector<int64_t>& sources) {
    held_ = Holding::Find(number);
    if (held_ == nullptr) return InvalidArgument("nothing is held under number ", number);
    const int64_t count = held_->tensors.size();
    for (const int64_t source : sources) {
      if (source < 0 || source >= count) return InvalidArgument("there is no tensor ", source, " of ", count);
      tensors.push_back(&held_->tensors[source]);
    }
    return absl::OkStatus();
  }

  absl::Status OpenSorted(int64_t number, Gradient* gradient) {
    sorted_.push_back(Holding::Find(number));
    if (sorted_.back() == nullptr || sorted_.back()->sorted == nullptr) {
      return InvalidArgument("no rows are held under number ", number);
    }
    gradient->values = &sorted_.back()->tensors[0];
    gradient->sorted = sorted_.back()->sorted.get();
    return absl::OkStatus();
  }

  std::vector<const Tensor*> tensors;

 private:
  std::shared_ptr<Held> held_;
  std::vector<std::shared_ptr<Held>> sorted_;
};

// Where gradients are rows: which ones. positions: by variable, see `update` of calls.h.
inline absl::Status FindRows(const Group& group, int64_t held, const std::vector<int64_t>& positions, Sources* found,
                             std::vector<Gradient>* gradients) {
  if (positions.empty()) return absl::OkStatus();
  if (positions.size() != gradients->size()) return InvalidArgument("got ", positions.size(), " rows");
  std::vector<int64_t> sparse;
  const bool has_powers = group.stepper->powers() > 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] >= 0) sparse.push_back(positions[i]);
    if (positions[i] >= 0 && has_powers && group.gpus[i] != nullptr) sparse.push_back(positions[i] + 1);
  }
  TF_RETURN_IF_ERROR(found->Open(held, sparse));
  for (size_t i = 0, next = 0; i < positions.size(); ++i) {
    if (positions[i] == kDense) continue;
    if (positions[i] >= 0) {
      (*gradients)[i].rows = found->tensors[next++];
      if (has_powers && group.gpus[i] != nullptr) (*gradients)[i].powers = found->tensors[next++];
    } else {
      TF_RETURN_IF_ERROR(found->OpenSorted(kDense - 1 - positions[i], &(*gradients)[i]));
    }
    if (group.gpus[i] != nullptr && (*gradients)[i].rows != nullptr) (*gradients)[i].PutOnGpu();
    if (!group.regions.empty()) (*gradients)[i].region = group.regions[i];
  }
  return absl::OkStatus();
}

inline const AllBasics* KnownBasics() {
  static const AllBasics* made = [] {
    auto* all = new AllBasics;
    return AllBasics::Make(all).ok() ? all : nullptr;
  }();
  return made;
}

// Those of what is held whose first tensor has gradients of the rows in the second, of a table with so many rows; and
// the powers of each.
inline absl::Status SortHeld(Held* held, int64_t limit, const std::vector<int64_t>& powers) {
  const Tensor &values = held->tensors[0], &indices = held->tensors[1];
  const Basics* basics = KnownBasics() == nullptr ? nullptr : (*KnownBasics())[values.dtype()];
  if (basics == nullptr || basics->element != basics->wide) return InvalidArgument("no rows of ", DataTypeString(values.dtype()));
  if (indices.dtype() != tensorflow::DT_INT64 && indices.dtype() != tensorflow::DT_INT32) {
    return InvalidArgument("indices are ", DataTypeString(indices.dtype()));
  }
  auto sorted = std::make_shared<SortedRows>();
  TF_RETURN_IF_ERROR(sorted->Make(*basics, values, indices, {0, limit, limit}, powers));
  held->sorted = std::move(sorted);
  return absl::OkStatus();
}

// The sum of squares of each of the tensors at `sources`; `number` is that of any group, whose threads are used.
inline absl::Status Squares(int64_t number, int64_t held, const std::vector<int64_t>& sources, std::vector<double>* sums) {
  const auto group = Registry::Find(number);
  if (group == nullptr || KnownBasics() == nullptr) return InvalidArgument("there is no group ", number);
  Sources values;
  TF_RETURN_IF_ERROR(values.Open(held, sources));
  sums->resize(sources.size());
  return SquareSums(*group->workers, values.tensors, *KnownBasics(), sums->data());
}

// `LaunchControl` of the tensors at `sources`, all on the GPU that the group of that number is on; made->tensors has what it
// makes. With a verdict if `wants` checks anything.
inline absl::Status Control(int64_t number, int64_t held, const std::vector<int64_t>& sources, const Scaling& wants,
                            Held* made) {
  const auto group = Registry::Find(number);
  if (group == nullptr || sources.empty()) return InvalidArgument("there is no group ", number);
  const std::shared_ptr<const Gpu> gpu = group->gpus[0];
  if (gpu == nullptr) return InvalidArgument("group ", number, " is on no GPU");
  Sources values;
  TF_RETURN_IF_ERROR(values.Open(held, sources));
  made->tensors.resize(1);
  return LaunchControl(*gpu, values.tensors, wants, &made->tensors[0], wants.checks ? &made->verdict : nullptr);
}

// Waits for what `Control` found out: whether the step is left out.
inline absl::Status IsLeftOut(int64_t control, bool* is_left_out) {
  const auto held = Holding::Find(control);
  if (held == nullptr || held->verdict == nullptr) return InvalidArgument("no verdict is held under number ", control);
  const Problem problem = held->verdict->Wait(Gpus::Get().driver());
  if (!problem.empty()) return absl::InternalError(problem);
  *is_left_out = *held->verdict->number() != 0;
  return absl::OkStatus();
}

// control: the number of what `Control` made; kNoControl: the host has all numbers.
constexpr int64_t kNoControl = -1;

inline absl::Status Update(int64_t number, int64_t held, const std::vector<int64_t>& rows, int64_t control,
                           Numbers* numbers) {
  const auto group = Registry::Find(number);
  if (group == nullptr || group->stepper == nullptr) return InvalidArgument("there is no joined group ", number);
  Sources values, sparse;
  TF_RETURN_IF_ERROR(values.Open(held, group->sources));
  std::vector<Gradient> gradients;
  for (const Tensor* tensor : values.tensors) gradients.push_back({tensor});
  TF_RETURN_IF_ERROR(FindRows(*group, held, rows, &sparse, &gradients));
  const auto made = control == kNoControl ? nullptr : Holding::Find(control);
  if (control != kNoControl && made == nullptr) return InvalidArgument("nothing is held under number ", control);
  if (made != nullptr) numbers->controls.assign(gradients.size(), &made->tensors[0]);
  numbers->is_identity_at_zero = group->is_identity_at_zero;
  const tensorflow::port::ScopedFlushDenormal as_in_an_op;
  return group->stepper->Run(*group->workers, *group, gradients, *numbers);
}

}  // namespace dtopt

#endif  // DTOPT_UPDATE_H_
