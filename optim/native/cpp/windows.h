// Sums of rows over several calls in a function on a mesh, where each device has its part of them: the ops of a device add to
// its part, take its mean, and look at that before.

#ifndef DTOPT_WINDOWS_H_
#define DTOPT_WINDOWS_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "gathered.h"
#include "groups.h"
#include "rows.h"
#include "step.h"

namespace dtopt {

// What is made of a sum: its mean over so many calls, scaled and clipped to +-limit.
struct Meaning {
  int64_t calls = 1;
  double scale = 1, limit = 1;
};

// A sum and its mark, as a device has its part of them: the one variable of a group and its slot.
class Window {
 public:
  // limit: the rows of the table.
  absl::Status Open(const Tensor& number, int64_t limit) {
    if (number.NumElements() != 1) return InvalidArgument("a sum has ", number.NumElements(), " numbers");
    group_ = Registry::Find(number.flat<int64_t>()(0));
    if (group_ == nullptr || group_->variables.size() != 1 || group_->slots.size() != 1 || group_->regions.size() != 1) {
      return InvalidArgument("there is no sum ", number.flat<int64_t>()(0));
    }
    limit_ = limit;
    return absl::OkStatus();
  }

  // Adds rows of the whole table, ascending, each once, all their columns.
  absl::Status Add(OpKernelContext* context, const AllBasics& all, const Tensor& sums, const Tensor& rows) {
    const Locks locks(*group_);
    int64_t mark;
    TF_RETURN_IF_ERROR(ReadMark(&mark));
    const Basics& basics = *all[sums.dtype()];
    if (sums.dtype() != total()->tensor()->dtype()) return InvalidArgument("the sum has another dtype");
    const int64_t *each = static_cast<const int64_t*>(rows.data()), count = rows.NumElements();
    OwnRows own;
    if (count > 0) TF_RETURN_IF_ERROR(own.Open(region(), each, each + count, total()));
    if (count * own.columns != sums.NumElements()) return InvalidArgument("rows of ", sums.NumElements() / count,
                                                                          " columns do not fit the sum");
    const char* from = static_cast<const char*>(sums.data());
    own.ForEach(context, [&](char* row, int64_t at) { basics.add(from + at, row, own.width); });
    WriteMark(GatheredRows::Add(mark, each, count));
    return absl::OkStatus();
  }

  // Their mean over so many calls: what this device has of them, counted from its first row.
  absl::Status Mean(const Meaning& meaning, Tensor* means, Tensor* rows) {
    const Locks locks(*group_);
    int64_t mark;
    TF_RETURN_IF_ERROR(ReadMark(&mark));
    all_ = GatheredRows::Find(mark, limit_);
    TF_RETURN_IF_ERROR(own_.Open(region(), all_.data(), all_.data() + all_.size(), total()));
    const DataType dtype = total()->tensor()->dtype();
    *rows = Tensor(tensorflow::DT_INT64, tensorflow::TensorShape({own_.count()}));
    *means = Tensor(dtype, tensorflow::TensorShape({own_.count(), own_.width}));
    const bool made = means->IsInitialized() || means->NumElements() == 0;
    if (!made) return absl::ResourceExhaustedError("no memory for the means of rows");
    for (int64_t k = 0; k < own_.count(); ++k) {
      rows->flat<int64_t>()(k) = own_.row(k);
      dtype == tensorflow::DT_DOUBLE ? Divide<double>(k, meaning, means) : Divide<float>(k, meaning, means);
    }
    return absl::OkStatus();
  }

  // After the step they start again at zero.
  absl::Status Clear() {
    const Locks locks(*group_);
    int64_t mark;
    TF_RETURN_IF_ERROR(ReadMark(&mark));
    all_ = GatheredRows::Find(mark, limit_);
    TF_RETURN_IF_ERROR(own_.Open(region(), all_.data(), all_.data() + all_.size(), total()));
    own_.Clear();
    GatheredRows::Forget(mark);
    WriteMark(GatheredRows::kNothing);
    return absl::OkStatus();
  }

  int64_t width() const { return own_.width; }

 private:
  Var* total() const { return group_->variables[0]; }
  const Region& region() const { return group_->regions[0]; }

  absl::Status ReadMark(int64_t* mark) const {
    const Tensor& tensor = *group_->slots[0]->tensor();
    if (tensor.dtype() != tensorflow::DT_INT64 || tensor.dims() != 0 || !tensor.IsInitialized()) {
      return InvalidArgument("a sum has no mark");
    }
    *mark = tensor.scalar<int64_t>()();
    return absl::OkStatus();
  }

  void WriteMark(int64_t mark) {
    Tensor made(tensorflow::DT_INT64, tensorflow::TensorShape({}));  // readers may hold the one that was there
    made.scalar<int64_t>()() = mark;
    *group_->slots[0]->tensor() = made;
  }

  template <typename T>
  void Divide(int64_t k, const Meaning& meaning, Tensor* means) const {
    const T* from = reinterpret_cast<const T*>(own_.data(k));
    T* to = means->flat<T>().data() + k * own_.width;
    const T calls = meaning.calls, scale = meaning.scale, limit = meaning.limit;
    for (int64_t i = 0; i < own_.width; ++i) {
      const T mean = from[i] / calls * scale;
      to[i] = mean > limit ? limit : mean < -limit ? -limit : mean;  // NaN stays
    }
  }

  tensorflow::core::RefCountPtr<Group> group_;
  int64_t limit_ = 0;
  std::vector<int64_t> all_;
  OwnRows own_;
};

// In a function on a mesh: adds IndexedSlices to the part of a sum that a device has. A device has a mark of its own, and
// all rows under it, so that steps outside of the function, which know that of the first device, find them.
class GatherOp : public tensorflow::OpKernel {
 public:
  explicit GatherOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("limit", &limit_));
    OP_REQUIRES_OK(context, AllBasics::Make(&basics_));
  }

  void Compute(OpKernelContext* context) override {
    Window window;
    OP_REQUIRES_OK(context, window.Open(context->input(0), limit_));
    Tensor sums, rows;
    OP_REQUIRES_OK(context, SumRows(context, basics_, context->input(1), context->input(2), {0, limit_, limit_}, &sums,
                                    &rows));
    OP_REQUIRES_OK(context, window.Add(context, basics_, sums, rows));
  }

 private:
  AllBasics basics_;
  int64_t limit_;
};

// The windows that an op is given, each with what is made of it.
class Windows {
 public:
  absl::Status Init(tensorflow::OpKernelConstruction* context) {
    TF_RETURN_IF_ERROR(context->GetAttr("limits", &limits_));
    return context->GetAttr("calls", &calls_);
  }

  absl::Status Open(OpKernelContext* context, size_t k, Window* window, Meaning* meaning) const {
    tensorflow::OpInputList sums;
    const Tensor* meanings;  // of each: a scale, and a limit
    TF_RETURN_IF_ERROR(context->input_list("windows", &sums));
    TF_RETURN_IF_ERROR(context->input("meanings", &meanings));
    const int64_t count = sums.size();
    if (static_cast<int64_t>(k) >= count || limits_.size() <= k || meanings->NumElements() != 2 * count) {
      return InvalidArgument("there is no window ", k, " of ", count);
    }
    *meaning = {calls_, meanings->flat<double>()(2 * k), meanings->flat<double>()(2 * k + 1)};
    return window->Open(sums[k], limits_[k]);
  }

  size_t count() const { return limits_.size(); }

 private:
  std::vector<int64_t> limits_;  // the rows of each table
  int64_t calls_ = 1;
};

// Of the means that a device has: for each window the sum of squares, and zero, or NaN if one of them is not finite.
class WindowSquaresOp : public tensorflow::OpKernel {
 public:
  explicit WindowSquaresOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, windows_.Init(context));
    OP_REQUIRES_OK(context, AllBasics::Make(&basics_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor* into;
    OP_REQUIRES_OK(context, context->input("into", &into));
    const auto group = Registry::Find(into->flat<int64_t>()(0));
    OP_REQUIRES(context, group != nullptr && group->variables.size() == 1, InvalidArgument("there is no place for sums"));
    std::vector<const Tensor*> means(windows_.count());
    std::vector<Tensor> held(windows_.count());
    for (size_t k = 0; k < held.size(); ++k) {
      Window window;
      Meaning meaning;
      Tensor rows;
      OP_REQUIRES_OK(context, windows_.Open(context, k, &window, &meaning));
      OP_REQUIRES_OK(context, window.Mean(meaning, &held[k], &rows));
      means[k] = &held[k];
    }
    std::vector<double> squares(held.size());
    OP_REQUIRES_OK(context, SquareSums(WorkersOf(context), means, basics_, squares.data()));
    const Locks locks(*group);
    Tensor* place = group->variables[0]->tensor();
    OP_REQUIRES(context, place->dtype() == tensorflow::DT_DOUBLE && place->NumElements() == 2 * means.size(),
                InvalidArgument("the place for sums has shape ", place->shape().DebugString()));
    Tensor made(place->dtype(), place->shape());  // readers may hold the one that was there
    for (size_t k = 0; k < held.size(); ++k) {
      made.flat<double>()(2 * k) = squares[k];
      made.flat<double>()(2 * k + 1) = std::isfinite(squares[k]) || AllFinite(held[k]) ? 0 : std::nan("");
    }
    *place = made;
  }

 private:
  static bool AllFinite(const Tensor& means) {  // squares of large numbers are not, either
    const auto is = [](auto x) { return std::isfinite(x); };
    if (means.dtype() != tensorflow::DT_DOUBLE) return false;
    const auto values = means.flat<double>();
    return std::all_of(values.data(), values.data() + values.size(), is);
  }

  Windows windows_;
  AllBasics basics_;
};

// What was gathered is left out: no step takes it.
class WindowClearOp : public tensorflow::OpKernel {
 public:
  explicit WindowClearOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, windows_.Init(context));
  }

  void Compute(OpKernelContext* context) override {
    for (size_t k = 0; k < windows_.count(); ++k) {
      Window window;
      Meaning meaning;
      OP_REQUIRES_OK(context, windows_.Open(context, k, &window, &meaning));
      OP_REQUIRES_OK(context, window.Clear());
    }
  }

 private:
  Windows windows_;
};

}  // namespace dtopt

#endif  // DTOPT_WINDOWS_H_
