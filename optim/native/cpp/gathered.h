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
  static constexpr int64_t kMost = int64_t{64} << 20;  // bytes that all lists but the newest may take

  // The mark of a sum that had the mark `before` once these rows, ascending, each once, are added to it.
  static int64_t Add(int64_t before, const int64_t* rows, int64_t count) {
    std::lock_guard<std::mutex> lock(mutex());
    std::vector<int64_t> now(rows, rows + count);
    if (before != kNothing) {
      const auto found = all().find(before);
      if (found == all().end()) return kAnything;
      std::vector<int64_t> joined;
      std::set_union(now.begin(), now.end(), found->second.begin(), found->second.end(), std::back_inserter(joined));
      now = std::move(joined);
      Erase(found);
    }
    while (held() > kMost) Erase(all().begin());  // the oldest
    const int64_t mark = next()++;
    held() += BytesOf(now);
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
    const auto found = all().find(mark);
    if (found != all().end()) Erase(found);
  }

 private:
  using All = std::map<int64_t, std::vector<int64_t>>;
  static constexpr int64_t kOfList = 128;  // about what a list takes beside its rows

  static int64_t BytesOf(const std::vector<int64_t>& rows) { return kOfList + rows.capacity() * sizeof(int64_t); }
  static void Erase(All::iterator list) {
    held() -= BytesOf(list->second);
    all().erase(list);
  }
  // Never destroyed, like the Registry of groups.
  static std::mutex& mutex() { static auto* it = new std::mutex; return *it; }
  static All& all() { static auto* it = new All; return *it; }
  static int64_t& held() { static auto* it = new int64_t(0); return *it; }  // bytes
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
