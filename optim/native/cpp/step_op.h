// The ops that step variables which are given by their handles, as functions have them: alone, or together with those of the
// other devices of a mesh.

#ifndef DTOPT_STEP_OP_H_
#define DTOPT_STEP_OP_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "groups.h"
#include "reading.h"
#include "rows.h"
#include "sorted.h"
#include "step.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "windows.h"

namespace dtopt {

// What an op is given of a step, with all that its gradients point to.
struct Given {
  tensorflow::core::RefCountPtr<Group> own, group;  // what is an input, and what is stepped
  size_t first = 0;                                 // where in `group` that which is an input begins
  Numbers numbers;
  std::vector<Gradient> gradients;
  std::vector<SortedRows> sorted;
  std::vector<std::pair<Tensor, Tensor>> summed, means;
  std::vector<Window> windows;

  absl::Status ClearWindows() {
    for (Window& window : windows) TF_RETURN_IF_ERROR(window.Clear());
    return absl::OkStatus();
  }
};

// How it is read.
class StepInputs {
 public:
  absl::Status Init(tensorflow::OpKernelConstruction* context) {
    TF_RETURN_IF_ERROR(context->GetAttr("sparse", &sparse_));
    TF_RETURN_IF_ERROR(context->GetAttr("identity_at_zero", &identity_at_zero_));
    std::vector<int> others;
    TF_RETURN_IF_ERROR(context->GetAttr("others", &others));
    for (const int how : others) others_.push_back(static_cast<Others>(how));
    TF_RETURN_IF_ERROR(context->GetAttr("totals", &totals_));
    TF_RETURN_IF_ERROR(context->GetAttr("powers", &powers_));
    TF_RETURN_IF_ERROR(context->GetAttr("gathered", &gathered_));
    TF_RETURN_IF_ERROR(windows_.Init(context));
    return AllBasics::Make(&basics_);
  }

  absl::Status Read(OpKernelContext* context, Given* given) const {
    TF_RETURN_IF_ERROR(Find(context, given));
    TF_RETURN_IF_ERROR(ReadNumbers(context, &given->numbers));
    given->numbers.is_identity_at_zero = identity_at_zero_;
    const Tensor* control;
    TF_RETURN_IF_ERROR(context->input("control", &control));
    tensorflow::OpInputList values, rows;
    TF_RETURN_IF_ERROR(context->input_list("gradients", &values));
    const int count = std::min<int>(values.size(), given->own->variables.size());
    if (control->NumElements() > 0) given->numbers.controls.assign(count, control);
    TF_RETURN_IF_ERROR(context->input_list("rows", &rows));
    given->gradients.resize(count);
    for (int i = 0; i < count; ++i) given->gradients[i].values = &values[i];
    given->sorted.resize(sparse_.size());
    given->summed.resize(sparse_.size());
    for (size_t k = 0; k < sparse_.size(); ++k) {
      const bool fits = static_cast<int>(k) < rows.size() && sparse_[k] < count;
      if (!fits) return InvalidArgument("there are no rows of gradient ", sparse_[k]);
      given->gradients[sparse_[k]].rows = &rows[k];
      const bool on_gpu = given->group->gpus[given->first + sparse_[k]] != nullptr;
      if (on_gpu) given->gradients[sparse_[k]].PutOnGpu();
      if (on_gpu && count + static_cast<int>(k) < values.size()) given->gradients[sparse_[k]].powers = &values[count + k];
      if (!totals_.empty() && !on_gpu) TF_RETURN_IF_ERROR(Part(context, k, given));
    }
    given->windows.resize(gathered_.size());
    given->means.resize(gathered_.size());
    for (size_t k = 0; k < gathered_.size(); ++k) TF_RETURN_IF_ERROR(Mean(context, k, given));
    return absl::OkStatus();
  }

 private:
  // The group of the handles that are inputs, or the one that is named, of which only the model's variables are inputs.
  absl::Status Find(OpKernelContext* context, Given* given) const {
    const Tensor* number;
    TF_RETURN_IF_ERROR(context->input("group", &number));
    given->own.reset(new Group);
    TF_RETURN_IF_ERROR(FindAll(context, given->own.get()));
    if (number->NumElements() == 0) {
      TF_RETURN_IF_ERROR(given->own->OrderLocks());
      given->own->others = others_;
      given->own->Ref();
      given->group.reset(given->own.get());
      return absl::OkStatus();
    }
    given->group = Registry::Find(number->flat<int64_t>()(0));
    if (given->group == nullptr) return InvalidArgument("there is no group ", number->flat<int64_t>()(0));
    const auto& models = given->group->roundings.empty() ? given->group->variables : given->group->roundings;
    const auto& mine = given->own->variables;
    const auto found = std::search(models.begin(), models.end(), mine.begin(), mine.end());
    if (found == models.end()) return InvalidArgument("the group has other variables");
    given->first = found - models.begin();
    return absl::OkStatus();
  }

  static absl::Status ReadNumbers(OpKernelContext* context, Numbers* numbers) {
    TF_RETURN_IF_ERROR((ReadVector<double, double>(context, "scalars", &numbers->scalars)));
    TF_RETURN_IF_ERROR((ReadVector<double, double>(context, "scales", &numbers->scales)));
    TF_RETURN_IF_ERROR((ReadVector<double, double>(context, "decays", &numbers->decays)));
    TF_RETURN_IF_ERROR((ReadVector<bool, bool>(context, "active", &numbers->active)));
    const Tensor* overwrite;
    TF_RETURN_IF_ERROR(context->input("overwrite", &overwrite));
    numbers->overwrite = overwrite->scalar<bool>()();
    TF_RETURN_IF_ERROR((ReadVector<double, double>(context, "options", &numbers->options)));
    const auto third = numbers->options.begin() + std::min<size_t>(numbers->options.size(), 3);
    numbers->packing.assign(third, numbers->options.end());
    numbers->options.erase(third, numbers->options.end());
    return absl::OkStatus();
  }

  // Of the rows that a window of calls has gathered those that this device has.
  absl::Status Mean(OpKernelContext* context, size_t k, Given* given) const {
    Meaning meaning;
    Window& window = given->windows[k];
    auto& [means, rows] = given->means[k];
    TF_RETURN_IF_ERROR(windows_.Open(context, k, &window, &meaning));
    TF_RETURN_IF_ERROR(window.Mean(meaning, &means, &rows));
    if (gathered_[k] >= static_cast<int>(given->gradients.size())) return InvalidArgument("there is no gradient ", gathered_[k]);
    given->gradients[gathered_[k]] = {&means, &rows, {0, 0, window.width()}, nullptr, true};
    return absl::OkStatus();
  }

  // Of rows of the whole table those that this device updates.
  absl::Status Part(OpKernelContext* context, size_t k, Given* given) const {
    if (k >= totals_.size()) return InvalidArgument("it is not said how many rows table ", k, " has");
    const Group& group = *given->group;
    const size_t i = given->first + sparse_[k];
    Gradient& gradient = given->gradients[sparse_[k]];
    const Region region = group.regions.empty() ? Region{} : group.regions[i];
    RowBox part;
    {
      tensorflow::tf_shared_lock lock(*group.Model(i)->mu());
      if (!PartOf(group, i, &part)) return InvalidArgument("the part of table ", k, " is not one of rows");
    }
    const Range range{region.first_row, part.rows, totals_[k]};
    gradient.region = {0, region.first_column, 1};
    for (int dim = 1; dim < gradient.values->dims(); ++dim) gradient.region.columns *= gradient.values->dim_size(dim);
    const Basics& basics = *basics_[gradient.values->dtype()];
    const Tensor& indices = *gradient.rows;
    if (basics.element == basics.wide) {
      gradient.rows = nullptr;
      gradient.sorted = &given->sorted[k];
      return given->sorted[k].Make(basics, *gradient.values, indices, range, powers_);
    }
    auto& [sums, rows] = given->summed[k];
    TF_RETURN_IF_ERROR(SumRows(context, basics_, *gradient.values, indices, range, &sums, &rows));
    gradient.values = &sums;
    gradient.rows = &rows;
    return absl::OkStatus();
  }

  AllBasics basics_;
  Windows windows_;
  std::vector<int64_t> totals_, powers_;
  std::vector<int> sparse_, gathered_;
  std::vector<Others> others_;
  bool identity_at_zero_;
};

class StepOp : public tensorflow::OpKernel {
 public:
  explicit StepOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, InitStepper(context, &stepper_));
    OP_REQUIRES_OK(context, inputs_.Init(context));
  }

  void Compute(OpKernelContext* context) override {
    Given given;
    OP_REQUIRES_OK(context, inputs_.Read(context, &given));
    OP_REQUIRES_OK(context, stepper_.Run(WorkersOf(context), *given.group, given.gradients, given.numbers));
    OP_REQUIRES_OK(context, given.ClearWindows());
  }

 private:
  Stepper stepper_;
  StepInputs inputs_;
};

// Where the ops of all devices wait for the last one, which steps the variables of all: where a device writes what others
// have, too, none may read before, nor still read what was there.
class Meeting : public std::enable_shared_from_this<Meeting> {
 public:
  using Done = std::function<void()>;

  void Come(std::unique_ptr<Given> given, OpKernelContext* context, Done done) {
    std::vector<Guest> all;
    const absl::Status status = Enter({std::move(given), context, done}, &all);
    if (!status.ok()) {
      context->SetStatus(status);
      return done();
    }
    if (all.empty()) return;
    for (const Guest& guest : all) {
      if (auto* manager = guest.context->cancellation_manager()) manager->TryDeregisterCallback(guest.token);
    }
    const absl::Status stepped = Step(&all);
    for (const Guest& guest : all) {
      if (!stepped.ok()) guest.context->SetStatus(stepped);
      guest.done();
    }
  }

 private:
  struct Guest {
    std::unique_ptr<Given> given;
    OpKernelContext* context;
    Done done;
    tensorflow::CancellationToken token = 0;
    int64_t number = 0;
  };

  // Once all are there, they are all moved to `all`.
  absl::Status Enter(Guest guest, std::vector<Guest>* all) {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t first = guest.given->first, wanted = guest.given->group->variables.size();
    size_t count = guest.given->gradients.size();
    for (const Guest& other : guests_) {
      if (other.given->first == first) return InvalidArgument("a device steps twice, and another one does not");
      count += other.given->gradients.size();
    }
    guest.number = next_++;
    if (auto* manager = guest.context->cancellation_manager()) {
      guest.token = manager->get_cancellation_token();
      const auto leave = [meeting = shared_from_this(), number = guest.number] { meeting->Leave(number); };
      if (!manager->RegisterCallback(guest.token, leave)) return absl::CancelledError("the step was cancelled");
    }
    guests_.push_back(std::move(guest));
    if (count >= wanted) all->swap(guests_);
    return absl::OkStatus();
  }

  // One is cancelled that waits: another device will not come.
  void Leave(int64_t number) {
    std::vector<Guest> gone;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto is_it = [&](const Guest& guest) { return guest.number == number; };
      const auto found = std::find_if(guests_.begin(), guests_.end(), is_it);
      if (found == guests_.end()) return;
      gone.push_back(std::move(*found));
      guests_.erase(found);
    }
    gone[0].context->SetStatus(absl::CancelledError("the step was cancelled"));
    gone[0].done();
  }

  static absl::Status Step(std::vector<Guest>* all) {
    const Given& any = *all->front().given;
    const Group& group = *any.group;
    Numbers numbers = any.numbers;
    std::vector<Gradient> gradients(group.variables.size());
    Join(*all, &Numbers::scales, &numbers.scales);
    Join(*all, &Numbers::decays, &numbers.decays);
    Join(*all, &Numbers::active, &numbers.active);
    Join(*all, &Numbers::controls, &numbers.controls);
    for (const Guest& guest : *all) {
      const auto& given = guest.given->gradients;
      std::copy(given.begin(), given.end(), gradients.begin() + guest.given->first);
    }
    TF_RETURN_IF_ERROR(group.stepper->Run(WorkersOf(all->front().context), group, gradients, numbers));
    for (const Guest& guest : *all) TF_RETURN_IF_ERROR(guest.given->ClearWindows());
    return absl::OkStatus();
  }

  // What each has one of for each of its variables, or all have none of.
  template <typename List>
  static void Join(const std::vector<Guest>& all, List Numbers::*list, List* joined) {
    if (joined->empty()) return;
    joined->resize(all.front().given->group->variables.size());
    for (const Guest& guest : all) {
      const List& given = guest.given->numbers.*list;
      std::copy(given.begin(), given.end(), joined->begin() + guest.given->first);
    }
  }

  std::mutex mutex_;
  std::vector<Guest> guests_;
  int64_t next_ = 0;
};

class StepTogetherOp : public tensorflow::AsyncOpKernel {
 public:
  explicit StepTogetherOp(tensorflow::OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, inputs_.Init(context));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto given = std::make_unique<Given>();
    OP_REQUIRES_OK_ASYNC(context, inputs_.Read(context, given.get()), done);
    const std::shared_ptr<Meeting> meeting = given->group->meeting;
    OP_REQUIRES_ASYNC(context, meeting != nullptr, InvalidArgument("the group was not joined"), done);
    meeting->Come(std::move(given), context, std::move(done));
  }

 private:
  StepInputs inputs_;
};

}  // namespace dtopt

#endif  // DTOPT_STEP_OP_H_
