// Sums of gradients over several calls of which some rows only are not zero: which ones, adding to them, and taking them.

#ifndef DTOPT_GATHERED_H_
#define DTOPT_GATHERED_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "groups.h"
#include "rows.h"
#include "step.h"
#include "threads.h"

namespace dtopt {

// The rows of a sum that may be other than zero, by a mark that the optimizer keeps beside the sum. A mark is that of one
// state of a sum: each that rows are added to gets another. One that is not known here (of another process, or long
// ago) says nothing about the sum, so that whatever brought the two back to an earlier state is right.
class GatheredRows {
 public:
  static constexpr int64_t kNothing = 0, kAnything = 1;  // as `accumulation.py` counts
  static constexpr size_t kMost = 4096;

  // The mark of a sum that had the mark `before` once these rows, ascending, each once, are added to it.
  static int64_t Add(int64_t before, const int64_t* rows, int64_t count) {
    std::lock_guard<std::mutex> lock(mutex());
    std::vector<int64_t> now(rows, rows + count);
    if (before != kNothing) {
      const auto found = all().find(before);
      if (found == all().end()) return kAnything;
      std::vector<int64_t> joined;
      joined.reserve(now.size() + found->second.size());
      std::set_union(now.begin(), now.end(), found->second.begin(), found->second.end(), std::back_inserter(joined));
      now = std::move(joined);
      all().erase(found);
    }
    if (all().size() >= kMost) all().erase(all().begin());  // the oldest
    const int64_t mark = next()++;
    all().emplace(mark, std::move(now));
    return mark;
  }

  // The rows of a sum of `limit` rows that may be other than zero: all if they are not known.
  static std::vector<int64_t> Find(int64_t mark, int64_t limit) {
    if (mark == kNothing) return {};
    std::lock_guard<std::mutex> lock(mutex());
    const auto found = all().find(mark);
    if (found != all().end()) return found->second;
    std::vector<int64_t> every(limit);
    std::iota(every.begin(), every.end(), 0);
    return every;
  }

  // What was taken is forgotten.
  static void Forget(int64_t mark) {
    std::lock_guard<std::mutex> lock(mutex());
    all().erase(mark);
  }

 private:
  using All = std::map<int64_t, std::vector<int64_t>>;
  // Never destroyed, like the Registry of groups.
  static std::mutex& mutex() { static auto* it = new std::mutex; return *it; }
  static All& all() { static auto* it = new All; return *it; }
  // Marks of two processes differ, and a double holds them.
  static int64_t& next() {
    static auto* it = new int64_t((int64_t{1} << 51) + (int64_t{std::random_device()()} << 18));
    return *it;
  }
};

// Those of some rows of a table, ascending, that a device has of it: `total` is the part that `region` says.
class OwnRows {
 public:
  absl::Status Open(const Tensor& region, const Tensor& rows, Var* total) {
    if (region.NumElements() != 3) return InvalidArgument("a region is three numbers");
    const auto numbers = region.flat<int64_t>();
    const int64_t* all = rows.flat<int64_t>().data();
    return Open({numbers(0), numbers(1), numbers(2)}, all, all + rows.NumElements(), total);
  }

  absl::Status Open(const Region& region, const int64_t* all, const int64_t* end, Var* total) {
    Tensor* tensor = total->tensor();
    if (!total->is_initialized || tensor->dims() < 1) return InvalidArgument("there is no sum of a table");
    first_row_ = region.first_row;
    first_column_ = region.first_column;
    columns = region.columns;
    const int64_t count = tensor->dim_size(0);
    width = count == 0 ? 0 : tensor->NumElements() / count;
    if (first_column_ + width > columns) return InvalidArgument("the region does not fit the sum");
    TF_RETURN_IF_ERROR(OwnBuffer(total));
    element_ = tensorflow::DataTypeSize(total->tensor()->dtype());
    data_ = static_cast<char*>(total->tensor()->data());
    all_ = all;
    begin_ = std::lower_bound(all_, end, first_row_);
    end_ = std::lower_bound(begin_, end, first_row_ + count);
    return absl::OkStatus();
  }

  // visit(what is here of a row, where that is in the rows of `rows`, `columns` bytes each), on several threads.
  template <typename Visit>
  void ForEach(OpKernelContext* context, const Visit& visit) const {
    const int64_t count = end_ - begin_, at_once = std::max<int64_t>(1, kBlock / std::max<int64_t>(width, 1));
    ForEachBlock(WorkersOf(context), (count + at_once - 1) / at_once, [&](int64_t block) {
      for (int64_t k = block * at_once; k < std::min(count, (block + 1) * at_once); ++k) {
        const int64_t other = (begin_ + k - all_) * columns + first_column_;
        visit(data_ + (begin_[k] - first_row_) * width * element_, other * element_);
      }
    });
  }

  int64_t count() const { return end_ - begin_; }
  int64_t row(int64_t k) const { return begin_[k] - first_row_; }  // of the part
  const char* data(int64_t k) const { return data_ + row(k) * width * element_; }
  void Clear() const {
    for (int64_t k = 0; k < count(); ++k) std::memset(data_ + row(k) * width * element_, 0, width * element_);
  }

  bool HasAll(const Tensor& rows) const { return end_ - begin_ == rows.NumElements() && width == columns; }

  int64_t width = 0, columns = 0;  // of the part, and of the table

 private:
  int64_t first_row_ = 0, first_column_ = 0, element_ = 0;
  char* data_ = nullptr;
  const int64_t *all_ = nullptr, *begin_ = nullptr, *end_ = nullptr;
};

// Adds rows to a sum.
class AddRowsOp : public tensorflow::OpKernel {
 public:
  explicit AddRowsOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, AllBasics::Make(&basics_));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<Var> total;
    OP_REQUIRES_OK(context, LookupResource(context, tensorflow::HandleFromInput(context, 0), &total));
    const Tensor &sums = context->input(1), &rows = context->input(2);
    const Basics& basics = *basics_[sums.dtype()];
    tensorflow::mutex_lock lock(*total->mu());
    OwnRows own;
    OP_REQUIRES_OK(context, own.Open(context->input(3), rows, total.get()));
    const bool fits = sums.dtype() == total->tensor()->dtype() && sums.NumElements() == rows.NumElements() * own.columns;
    OP_REQUIRES(context, fits, InvalidArgument("rows of shape ", sums.shape().DebugString(), " do not fit the sum"));
    const char* from = static_cast<const char*>(sums.data());
    own.ForEach(context, [&](char* row, int64_t at) { basics.add(from + at, row, own.width); });
  }

 private:
  AllBasics basics_;
};

// Rows of a sum, zeros in what other devices have of them; they start again at zero.
class TakeRowsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<Var> total;
    OP_REQUIRES_OK(context, LookupResource(context, tensorflow::HandleFromInput(context, 0), &total));
    const Tensor& rows = context->input(1);
    tensorflow::mutex_lock lock(*total->mu());
    OwnRows own;
    OP_REQUIRES_OK(context, own.Open(context->input(2), rows, total.get()));
    Tensor* sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, {rows.NumElements(), own.columns}, &sums));
    OP_REQUIRES(context, sums->dtype() == total->tensor()->dtype(), InvalidArgument("the sum has another dtype"));
    const int64_t size = own.width * tensorflow::DataTypeSize(sums->dtype());
    char* to = static_cast<char*>(sums->data());
    if (!own.HasAll(rows)) std::memset(to, 0, sums->TotalBytes());
    own.ForEach(context, [&](char* row, int64_t at) {
      std::memcpy(to + at, row, size);
      std::memset(row, 0, size);
    });
  }
};

// A sum and its mark, as a device has its part of them: the one variable of a group and its slot.
class Window {
 public:
  static constexpr int64_t kPlaces = 2;

  // starts: the first row and column of the part; limit: the rows of the table.
  absl::Status Open(const Tensor& number, const Tensor& starts, int64_t limit) {
    if (number.NumElements() != 1 || starts.NumElements() != kPlaces) return InvalidArgument("a sum is not said right");
    group_ = Registry::Find(number.flat<int64_t>()(0));
    if (group_ == nullptr || group_->variables.size() != 1 || group_->slots.size() != 1) {
      return InvalidArgument("there is no sum ", number.flat<int64_t>()(0));
    }
    start_ = {starts.flat<int64_t>()(0), starts.flat<int64_t>()(1), 0};
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
    start_.columns = count == 0 ? 0 : sums.NumElements() / count;
    OwnRows own;
    if (count > 0) TF_RETURN_IF_ERROR(own.Open(start_, each, each + count, total()));
    const char* from = static_cast<const char*>(sums.data());
    own.ForEach(context, [&](char* row, int64_t at) { basics.add(from + at, row, own.width); });
    WriteMark(GatheredRows::Add(mark, each, count));
    return absl::OkStatus();
  }

  // Their mean over so many calls: what this device has of them, counted from its first row.
  absl::Status Mean(int64_t calls, int64_t columns, Tensor* means, Tensor* rows) {
    const Locks locks(*group_);
    TF_RETURN_IF_ERROR(ReadMark(&mark_));
    all_ = GatheredRows::Find(mark_, limit_);
    start_.columns = columns;
    TF_RETURN_IF_ERROR(own_.Open(start_, all_.data(), all_.data() + all_.size(), total()));
    const DataType dtype = total()->tensor()->dtype();
    *rows = Tensor(tensorflow::DT_INT64, tensorflow::TensorShape({own_.count()}));
    *means = Tensor(dtype, tensorflow::TensorShape({own_.count(), own_.width}));
    const bool made = means->IsInitialized() || means->NumElements() == 0;
    if (!made) return absl::ResourceExhaustedError("no memory for the means of rows");
    for (int64_t k = 0; k < own_.count(); ++k) {
      rows->flat<int64_t>()(k) = own_.row(k);
      dtype == tensorflow::DT_DOUBLE ? Divide<double>(k, calls, means) : Divide<float>(k, calls, means);
    }
    return absl::OkStatus();
  }

  // After a step by their mean they start again at zero.
  void Clear() {
    const Locks locks(*group_);
    if (!own_.Open(start_, all_.data(), all_.data() + all_.size(), total()).ok()) return;
    own_.Clear();
    GatheredRows::Forget(mark_);
    WriteMark(GatheredRows::kNothing);
  }

 private:
  Var* total() const { return group_->variables[0]; }

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
  void Divide(int64_t k, int64_t calls, Tensor* means) const {
    const T* from = reinterpret_cast<const T*>(own_.data(k));
    T* to = means->flat<T>().data() + k * own_.width;
    for (int64_t i = 0; i < own_.width; ++i) to[i] = from[i] / static_cast<T>(calls);
  }

  tensorflow::core::RefCountPtr<Group> group_;
  Region start_;
  int64_t limit_ = 0, mark_ = 0;
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
    OP_REQUIRES_OK(context, window.Open(context->input(0), context->input(3), limit_));
    Tensor sums, rows;
    OP_REQUIRES_OK(context, SumRows(context, basics_, context->input(1), context->input(2), {0, limit_, limit_}, &sums,
                                    &rows));
    OP_REQUIRES_OK(context, window.Add(context, basics_, sums, rows));
  }

 private:
  AllBasics basics_;
  int64_t limit_;
};

// The mark of a sum that rows are added to.
class MarkRowsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    Tensor* mark;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &mark));
    const auto rows = context->input(1).flat<int64_t>();
    mark->scalar<int64_t>()() = GatheredRows::Add(context->input(0).scalar<int64_t>()(), rows.data(), rows.size());
  }
};

// The rows of a sum that may be other than zero, ascending: all of its `limit` if they are not known.
class MarkedRowsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const int64_t mark = context->input(0).scalar<int64_t>()(), limit = context->input(1).scalar<int64_t>()();
    const std::vector<int64_t> found = GatheredRows::Find(mark, limit);
    GatheredRows::Forget(mark);
    Tensor* rows;
    OP_REQUIRES_OK(context, context->allocate_output(0, {static_cast<int64_t>(found.size())}, &rows));
    std::copy(found.begin(), found.end(), rows->vec<int64_t>().data());
  }
};

}  // namespace dtopt

#endif  // DTOPT_GATHERED_H_
